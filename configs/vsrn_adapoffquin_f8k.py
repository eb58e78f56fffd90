"""VSRN + AdapOffQuin on Flickr8k grid features, smaller, for a CPU (paper 000 on other data); VSRN mines."""

from ml_collections import ConfigDict

from configs import vsrn_f8k
from configs.vsrn_adapoffquin_f30k import make_second_round


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsrn_f8k.get_config(), vsrn_f8k.get_config()
    return make_second_round(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5)
