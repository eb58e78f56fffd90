"""BFAN (equal) on Flickr8k grid features, smaller, for a CPU (Liu et al., 2019, on other data)."""

from ml_collections import ConfigDict

from configs import bfan_equal_f30k, scan_t2i_avg_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f8k.shrink(bfan_equal_f30k.get_config())
    return config
