"""SCAN t-i AVG + OffQuin on COCO (paper 000, Table 1); VSRN mines the negatives."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_coco, vsrn_coco
from configs.vsrn_adapoffquin_f30k import as_published


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_coco.get_config(), scan_t2i_avg_coco.get_config()
    return as_published(config, first, 'offline_quintuplet')
