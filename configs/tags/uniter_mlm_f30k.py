"""UNITER base on Flickr30K, fine-tuned with hard negatives and masked phrases: a static generator (paper 001, 3.2)."""

from ml_collections import ConfigDict

from configs.tags import uniter_f30k
from configs.tags.uniter_f30k import COUNTS


def predict_masked(config: ConfigDict, *, weight: float) -> ConfigDict:
    """Adds masked language modeling of phrases to a setting of UNITER (paper 001, eq. 1).

    Args:
      config: the setting.
      weight: lambda_MLM.
    """
    config.masking.num_views = 20
    config.scene_graphs.source = 'scene_graphs.rules'
    masked = dict(loss='tokens.masked_language_modeling', weight=weight, **COUNTS)
    config.terms = dict(config.terms.to_dict(), masked=masked)
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return predict_masked(uniter_f30k.get_config(), weight=0.1)
