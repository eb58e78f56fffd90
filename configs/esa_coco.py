"""ESA with BERT on COCO."""

from ml_collections import ConfigDict

from configs import esa_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = esa_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    return config
