"""ESA with a bi-GRU beside an anchor, RM, on COCO (paper 002, table I: OSS)."""

from ml_collections import ConfigDict

from configs import esa_bigru_coco
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(esa_bigru_coco.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
