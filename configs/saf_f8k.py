"""SAF on Flickr8k grid features, smaller, for a CPU (Diao et al., 2021, on other data)."""

from ml_collections import ConfigDict

from configs import saf_f30k, sgr_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = sgr_f8k.shrink(saf_f30k.get_config())
    return config
