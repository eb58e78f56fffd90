"""DBL's network and another, learning from each other, DML, on Flickr30K (paper 002, table II: OSS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f30k.get_config(), 'mutual', 'distillation.mutual_learning', reduction='mean')
