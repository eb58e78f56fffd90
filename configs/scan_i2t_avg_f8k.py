"""SCAN i-t AVG on Flickr8k grid features, smaller, for a CPU (Lee et al., 2018, on other data)."""

from ml_collections import ConfigDict

from configs import scan_i2t_avg_f30k, scan_t2i_avg_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f8k.shrink(scan_i2t_avg_f30k.get_config())
    return config
