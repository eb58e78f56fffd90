"""VSE-infinity with BERT on COCO (Chen et al., 2021; regions; in table 6 of paper 004)."""

from ml_collections import ConfigDict

from configs import vse_infty_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_infty_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    return config
