"""BFAN (prob) on Flickr30K (Liu et al., 2019)."""

from ml_collections import ConfigDict

from configs import bfan_equal_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = bfan_equal_f30k.get_config()
    config.model.focal = 'prob'
    return config
