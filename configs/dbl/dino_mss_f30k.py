"""DBL's network and its average, DINO, on Flickr30K (paper 002, table II: MSS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(dbl_baseline_f30k.get_config(), 'mss', 'distillation.self_distillation', reduction='mean')
