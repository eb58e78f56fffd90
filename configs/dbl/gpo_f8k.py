"""VSE-infinity (GPO) without its epoch of sum of hinges on Flickr8k, smaller (paper 002, section IV-B)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f8k
from configs.dbl.gpo_f30k import without_warm_up


def get_config() -> ConfigDict:
    """Returns the config."""
    return without_warm_up(vse_infty_bigru_f8k.get_config())
