"""UNITER on the synthetic scenes, tiny, from scratch: masked words, and matches told from mismatches of the batch."""

from ml_collections import ConfigDict

from configs.tags import pretrain_f30k
from configs.tags.uniter_scenes import use_scenes


def get_config() -> ConfigDict:
    """Returns the config."""
    config = use_scenes(pretrain_f30k.get_config())
    config.epochs, config.batch_size = 6, 16
    config.masking.num_views, config.scene_graphs.source = 4, 'scene_graphs.gold'
    config.optimizer.learning_rate = 1e-3
    return config
