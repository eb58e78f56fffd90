"""DBL's network and its average, DINO*, on Flickr8k, smaller (paper 002, table II: MSS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(
        dbl_baseline_f8k.get_config(),
        'mss',
        'distillation.self_distillation',
        reduction='mean',
        inverse=True,
        momentum=0.9952,
    )
