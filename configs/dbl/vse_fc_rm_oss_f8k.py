"""VSE(FC) beside an anchor, RM, on Flickr8k (as paper 002, on another network)."""

from ml_collections import ConfigDict

from configs.dbl import vse_fc_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(vse_fc_f8k.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
