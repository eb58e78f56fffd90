"""SCAN i-t AVG on Flickr30K (Lee et al., 2018); published SCAN is the mean with a t-i model."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f30k.get_config()
    config.model.direction = 'i2t'
    config.model.lambda_softmax = 4.0
    return config
