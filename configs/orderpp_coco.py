"""Order++ on COCO, features of 10 crops (paper 003, section 3.7 and table 4)."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/10crop_precomp'
    config.model.measure = 'order'
    return config
