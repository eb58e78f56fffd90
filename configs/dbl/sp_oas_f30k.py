"""DBL's network that begins as a trained anchor, SP, on Flickr30K (paper 002, in the released code: OAS)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k
from configs.dbl.rm_oss_f30k import boost


def get_config() -> ConfigDict:
    """Returns the config."""
    return boost(
        dbl_baseline_f30k.get_config(),
        'oas',
        'distillation.similarity_preserving',
        weight=5.0,
        reduction='mean',
        anchor='runs/dbl_baseline_f30k',
    )
