"""VSE++ on COCO (paper 003, table 1)."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/coco_precomp'
    return config
