"""VSE-infinity with a GRU on Flickr8k grid features (smaller)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f30k
from configs.vse_fc_max_f8k import shrink


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink(vse_infty_bigru_f30k.get_config())
