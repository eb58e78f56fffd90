"""ESA with a GRU on Flickr8k grid features (smaller, word vectors from scratch)."""

from ml_collections import ConfigDict

from configs import esa_bigru_f30k
from configs.vse_fc_max_f8k import shrink


def get_config() -> ConfigDict:
    """Returns the config."""
    config = shrink(esa_bigru_f30k.get_config())
    config.initialize.word_vectors = ''
    return config
