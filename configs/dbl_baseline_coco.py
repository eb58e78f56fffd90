"""The network that DBL boosts, alone, on COCO (paper 002)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = dbl_baseline_f30k.get_config()
    config.epochs = 20
    config.data.root = 'data/coco_precomp'
    config.optimizer.decay_epochs = 10
    return config
