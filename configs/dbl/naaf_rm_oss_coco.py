"""NAAF beside an anchor, RM, on COCO (paper 002, table I: OSS)."""

from ml_collections import ConfigDict

from configs import naaf_coco
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(naaf_coco.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
