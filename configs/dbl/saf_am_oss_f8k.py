"""SAF beside an anchor, AM, on Flickr8k, smaller (paper 002, table I: OSS, one of the two models of SGRAF)."""

from ml_collections import ConfigDict

from configs import saf_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(saf_f8k.get_config(), 'oss', 'anchored.absolute_max', margin=0.2, alpha=0.5)
