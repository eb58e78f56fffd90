"""SCAN i-t LSE on Flickr30K (Lee et al., 2018)."""

from ml_collections import ConfigDict

from configs import scan_i2t_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_i2t_avg_f30k.get_config()
    config.model.aggregation = 'LogSumExp'
    config.model.lambda_lse = 5.0
    return config
