"""BFAN (equal) + AdapOffQuin on COCO (paper 000, Table 1); VSRN mines the negatives."""

from ml_collections import ConfigDict

from configs import bfan_equal_coco, vsrn_coco
from configs.vsrn_adapoffquin_f30k import as_published


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_coco.get_config(), bfan_equal_coco.get_config()
    return as_published(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5)
