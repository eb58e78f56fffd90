"""SGR on COCO (Diao et al., 2021)."""

from ml_collections import ConfigDict

from configs import sgr_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = sgr_f30k.get_config()
    config.epochs = 20
    config.data.root = 'data/coco_precomp'
    config.optimizer.decay_epochs = 10
    return config
