"""VSE++, w/o OfflineAdap, on Flickr8k, for a CPU (paper 000, Table 3; its alpha and beta are not told)."""

from ml_collections import ConfigDict

from configs import vsepp_f8k
from configs.vsrn_adapoffquin_f30k import make_second_round


def get_config() -> ConfigDict:
    """Returns the config."""
    first, config = vsepp_f8k.get_config(), vsepp_f8k.get_config()
    return make_second_round(config, first, 'adaptive_offline_quintuplet', alpha=0.3, beta=1.5, weigh_by_positive=True)
