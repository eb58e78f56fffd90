"""SCAN i-t AVG on COCO (Lee et al., 2018)."""

from ml_collections import ConfigDict

from configs import scan_i2t_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_i2t_avg_f30k.get_config()
    config.epochs = 20
    config.data.root = 'data/coco_precomp'
    config.optimizer.learning_rate = 5e-4
    config.optimizer.decay_epochs = 10
    return config
