"""VSE++, OnlineQuin, on Flickr8k, for a CPU (paper 000, Table 3)."""

from ml_collections import ConfigDict

from configs import vsepp_f8k
from configs.vsrn_adapoffquin_f30k import make_second_round


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsepp_f8k.get_config(), vsepp_f8k.get_config()
    return make_second_round(config, first, 'online_quintuplet')
