"""DBL's network beside an anchor, AS, on Flickr30K (paper 002, table IV: OSS, model C)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f30k.get_config(), 'oss', 'anchored.absolute_sum', margin=0.2, alpha=0.5)
