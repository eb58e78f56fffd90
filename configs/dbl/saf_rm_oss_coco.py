"""SAF beside an anchor, RM, on COCO (paper 002, table I: OSS, one of the two models of SGRAF)."""

from ml_collections import ConfigDict

from configs import saf_coco
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(saf_coco.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
