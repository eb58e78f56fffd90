"""BFAN (equal) + AdapOffQuin on Flickr30K (paper 000, Table 2); VSRN mines the negatives."""

from ml_collections import ConfigDict

from configs import bfan_equal_f30k, vsrn_f30k
from configs.vsrn_adapoffquin_f30k import as_published


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_f30k.get_config(), bfan_equal_f30k.get_config()
    return as_published(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5)
