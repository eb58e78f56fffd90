"""RVSE(MLP) with selectively hard negatives (SelHN) on Flickr8k grid features (as paper 004, smaller)."""

from ml_collections import ConfigDict

from configs import rvse_mlp_selhn_f30k
from configs.vse_fc_max_f8k import shrink


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink(rvse_mlp_selhn_f30k.get_config())
