"""TAGS on Flickr8k grid features, tiny (as paper 001)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes
from configs.tags.uniter_f8k import shrink_to_f8k


def write_on_f8k(config: ConfigDict) -> ConfigDict:
    """Gives a setting of TAGS on the scenes Flickr8k, and fewer sentences."""
    config = shrink_to_f8k(config)
    config.masking.num_views, config.synthesis.num_hard = 4, 3
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return write_on_f8k(tags_scenes.get_config())
