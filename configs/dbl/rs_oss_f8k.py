"""DBL's network beside an anchor, RS, on Flickr8k, smaller (paper 002, table IV: OSS, model B)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f8k.get_config(), 'oss', 'anchored.relative_sum', margin=0.2)
