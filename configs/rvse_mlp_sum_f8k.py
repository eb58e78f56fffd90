"""RVSE(MLP) with the triplet loss over all negatives on Flickr8k grid features (as paper 004, smaller)."""

from ml_collections import ConfigDict

from configs import rvse_mlp_sum_f30k
from configs.vse_fc_max_f8k import shrink


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink(rvse_mlp_sum_f30k.get_config())
