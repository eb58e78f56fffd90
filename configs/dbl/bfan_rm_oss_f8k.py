"""BFAN (equal) beside an anchor, RM, on Flickr8k, smaller (paper 002, table I: OSS)."""

from ml_collections import ConfigDict

from configs import bfan_equal_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(bfan_equal_f8k.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
