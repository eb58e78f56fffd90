"""DBL's network that begins as a trained anchor, RM, on Flickr8k, smaller (paper 002, table II: OAS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(
        dbl_baseline_f8k.get_config(), 'oas', 'anchored.relative_max', margin=0.2, anchor='runs/dbl_baseline_f8k'
    )
