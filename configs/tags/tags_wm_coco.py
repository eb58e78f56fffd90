"""TAGS base on COCO with masks of single words (paper 001, table 2: w/ WM)."""

from ml_collections import ConfigDict

from configs.tags import tags_coco


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_coco.get_config()
    config.scene_graphs.source = ''
    return config
