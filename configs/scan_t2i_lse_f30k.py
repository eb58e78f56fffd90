"""SCAN t-i LSE on Flickr30K (Lee et al., 2018)."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f30k.get_config()
    config.model.aggregation = 'LogSumExp'
    return config
