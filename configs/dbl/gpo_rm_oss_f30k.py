"""GPO without warm-up beside an anchor, RM, on Flickr30K (paper 002, section IV-B: OSS)."""

from ml_collections import ConfigDict

from configs.dbl import gpo_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(gpo_f30k.get_config(), 'oss', 'anchored.relative_max', margin=0.2)
