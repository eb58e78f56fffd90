"""UNITER on Flickr8k grid features, tiny: the hardest of a batch of 16, after pre-training (pretrain_f8k)."""

from ml_collections import ConfigDict

from configs.tags import uniter_scenes
from configs.tags.pretrain_f8k import use_f8k


def shrink_to_f8k(config: ConfigDict) -> ConfigDict:
    """Gives a setting of the scenes Flickr8k, and fewer candidates for its 36 regions; begins with `pretrain_f8k`."""
    config = use_f8k(config)
    config.batch_size = 16
    config.candidates.num_extra, config.candidates.num_hard = 0, 3
    config.members.target.init_from = 'runs/pretrain_f8k'
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink_to_f8k(uniter_scenes.get_config())
