"""UNITER on the synthetic scenes, tiny: the hardest of 32 candidates, after pre-training (pretrain_scenes)."""

from ml_collections import ConfigDict

from configs.tags import uniter_f30k


def use_scenes(config: ConfigDict) -> ConfigDict:
    """Gives a setting the scenes and their words, and a tiny model."""
    config.data = dict(source='scenes.load', seed=0, train_images=2000, dev_images=100, test_images=200)
    config.vocabulary = dict(path='', min_count=1)
    config.model.size, config.model.dtype, config.model.dropout = 'tiny', 'float32', 0.0
    config.evaluation.every_steps = None
    return config


def shrink(config: ConfigDict) -> ConfigDict:
    """Makes a setting of UNITER small, for a CPU; it begins with a run of `pretrain_scenes`."""
    config = use_scenes(config)
    config.epochs, config.batch_size = 1, 8
    config.candidates.num_extra, config.candidates.num_hard = 24, 7
    config.optimizer.learning_rate = 3e-4
    config.members.target.init_from = 'runs/pretrain_scenes'
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink(uniter_f30k.get_config())
