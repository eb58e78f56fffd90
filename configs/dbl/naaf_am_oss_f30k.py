"""NAAF beside an anchor, AM, on Flickr30K (paper 002, table I: OSS)."""

from ml_collections import ConfigDict

from configs import naaf_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(naaf_f30k.get_config(), 'oss', 'anchored.absolute_max', margin=0.2, alpha=0.5)
