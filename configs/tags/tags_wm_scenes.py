"""TAGS on the synthetic scenes, tiny, with masks of single words (as paper 001, table 2: w/ WM)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_scenes.get_config()
    config.scene_graphs.source = ''
    return config
