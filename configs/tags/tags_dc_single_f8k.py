"""TAGS-DC on Flickr8k grid features, tiny, in one stage (as paper 001, algorithm 1)."""

from ml_collections import ConfigDict

from configs.tags import tags_dc_single_scenes
from configs.tags.tags_f8k import write_on_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    return write_on_f8k(tags_dc_single_scenes.get_config())
