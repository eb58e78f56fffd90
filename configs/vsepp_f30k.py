"""VSE++ on Flickr30K (paper 003, table 3; every default)."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    return config
