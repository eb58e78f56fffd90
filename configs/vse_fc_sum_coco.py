"""VSE(FC) with the triplet loss over all negatives on COCO (paper 004, table 3)."""

from ml_collections import ConfigDict

from configs import vse_fc_sum_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_sum_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    return config
