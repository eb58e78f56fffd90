"""VSE(FC) with the selectively contrastive triplet loss (SCT) on COCO (paper 004, table 3)."""

from ml_collections import ConfigDict

from configs import vse_fc_sct_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_sct_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    return config
