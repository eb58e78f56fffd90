"""BFAN (equal) on COCO (Liu et al., 2019)."""

from ml_collections import ConfigDict

from configs import bfan_equal_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = bfan_equal_f30k.get_config()
    config.epochs = 20
    config.data.root = 'data/coco_precomp'
    config.optimizer.learning_rate = 5e-4
    return config
