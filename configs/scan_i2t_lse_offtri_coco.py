"""SCAN i-t LSE + OffTri on COCO (paper 000, Table 1); VSRN mines the negatives."""

from ml_collections import ConfigDict

from configs import scan_i2t_lse_coco, vsrn_coco
from configs.vsrn_adapoffquin_f30k import make_second_round


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_coco.get_config(), scan_i2t_lse_coco.get_config()
    return make_second_round(config, first, 'offline_triplet')
