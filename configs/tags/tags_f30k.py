"""TAGS base on Flickr30K: UNITER with negative sentences that it writes itself, stage 1 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs.tags import uniter_f30k
from configs.tags.uniter_f30k import COUNTS, HINGES
from configs.tags.uniter_mlm_f30k import predict_masked


def write(config: ConfigDict, *, synthetic: float, masked: float, temperature: float, hardest: int = 31) -> ConfigDict:
    """Adds generated sentences to a setting of UNITER (paper 001, sections 2.1 to 2.3).

    Args:
      config: the setting.
      synthetic: lambda_ISTM, the weight of the triplet loss of generated sentences.
      masked: lambda_MLM.
      temperature: tau.
      hardest: m, how many sentences are kept.
    """
    config = predict_masked(config, weight=masked)
    config.model.heads = ('itm', 'mlm')  # the former for stage 2, whose word discrimination begins as it
    config.synthesis = dict(generator='target', num_samples=20, temperature=temperature, num_hard=hardest)
    synthetic = dict(HINGES, weight=synthetic, rankings=('generated',), **COUNTS)
    config.terms = dict(config.terms.to_dict(), synthetic=synthetic)
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return write(uniter_f30k.get_config(), synthetic=5e-4, masked=0.05, temperature=2.0)
