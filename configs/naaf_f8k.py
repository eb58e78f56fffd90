"""NAAF with a GRU on Flickr8k grid features (smaller, word vectors from scratch)."""

from ml_collections import ConfigDict

from configs import naaf_f30k, scan_t2i_avg_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f8k.shrink(naaf_f30k.get_config())
    config.initialize.word_vectors = ''
    return config
