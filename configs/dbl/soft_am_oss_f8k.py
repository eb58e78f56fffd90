"""DBL's network beside an anchor, AM with soft margins, on Flickr8k, smaller (paper 002, table IV: OSS, model E)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f8k.get_config(), 'oss', 'anchored.absolute_max', margin=0.2, alpha=0.5, extreme=1.0)
