"""NAAF on COCO (Zhang et al., 2022)."""

from ml_collections import ConfigDict

from configs import naaf_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = naaf_f30k.get_config()
    config.batch_size = 256
    config.data.root = 'data/coco_precomp'
    return config
