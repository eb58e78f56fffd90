"""RVSE++ on COCO (paper 004, tables 6 and 11)."""

from ml_collections import ConfigDict

from configs import rvsepp_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = rvsepp_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    return config
