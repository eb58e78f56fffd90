"""BFAN (prob), OnlineQuin, on COCO (paper 000, Table 3)."""

from ml_collections import ConfigDict

from configs import bfan_prob_coco, vsrn_coco
from configs.vsrn_adapoffquin_f30k import as_published


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_coco.get_config(), bfan_prob_coco.get_config()
    return as_published(config, first, 'online_quintuplet')
