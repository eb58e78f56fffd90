"""UNITER on Flickr8k grid features, tiny: the hardest of 32 candidates, after pre-training (pretrain_f8k)."""

from ml_collections import ConfigDict

from configs.tags import uniter_scenes
from configs.tags.pretrain_f8k import use_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = use_f8k(uniter_scenes.get_config())
    config.epochs = 1
    config.members.target.init_from = 'runs/pretrain_f8k'
    return config
