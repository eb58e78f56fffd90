"""TAGS base on Flickr30K with masks of single words (paper 001, table 2: w/ WM)."""

from ml_collections import ConfigDict

from configs.tags import tags_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_f30k.get_config()
    config.scene_graphs.source = ''
    return config
