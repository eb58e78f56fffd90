"""DBL's network and its average, AM, on Flickr30K (paper 002, tables II and III: MSS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f30k.get_config(), 'mss', 'anchored.absolute_max', margin=0.2, alpha=0.5)
