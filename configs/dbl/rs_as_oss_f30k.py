"""DBL's network beside an anchor, the mean of RS and AS, on Flickr30K (paper 002, table IV: OSS, model H)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import add_term, boost


def get_config() -> ConfigDict:
    """Returns the config."""
    config = boost(dbl_baseline_f30k.get_config(), 'oss', 'anchored.relative_sum', margin=0.2, weight=0.5)
    return add_term(config, 'anchored.absolute_sum', margin=0.2, alpha=0.5, weight=0.5)
