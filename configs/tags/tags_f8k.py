"""TAGS on Flickr8k grid features, tiny (as paper 001)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes
from configs.tags.pretrain_f8k import use_f8k


def write_on_f8k(config: ConfigDict) -> ConfigDict:
    """Gives a setting of TAGS on the scenes Flickr8k, with scene graphs by rules; it begins with `pretrain_f8k`."""
    config = use_f8k(config)
    config.epochs = 1
    config.scene_graphs.source = 'scene_graphs.rules'
    config.members.target.init_from = 'runs/pretrain_f8k'
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return write_on_f8k(tags_scenes.get_config())
