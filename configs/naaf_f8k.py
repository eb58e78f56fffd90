"""NAAF with a GRU on Flickr8k grid features (smaller, word vectors from scratch)."""

from ml_collections import ConfigDict

from configs import naaf_f30k
from configs.vse_fc_max_f8k import shrink


def get_config() -> ConfigDict:
    """Returns the config."""
    config = shrink(naaf_f30k.get_config())
    config.initialize.word_vectors = ''
    config.model.embed_dim = 256
    return config
