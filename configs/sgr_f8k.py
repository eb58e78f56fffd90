"""SGR on Flickr8k grid features, smaller, for a CPU (Diao et al., 2021, on other data)."""

from ml_collections import ConfigDict

from configs import scan_t2i_avg_f8k, sgr_f30k


def shrink(config: ConfigDict) -> ConfigDict:
    """Makes a model of alignments its small twin."""
    config = scan_t2i_avg_f8k.shrink(config)
    config.model.alignment_dim = 64
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = shrink(sgr_f30k.get_config())
    return config
