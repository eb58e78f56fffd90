"""The network that DBL boosts, alone, on Flickr8k grid features, smaller, for a CPU (paper 002, on other data)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f30k, scan_t2i_avg_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = scan_t2i_avg_f8k.shrink(dbl_baseline_f30k.get_config())
    config.epochs = 2
    config.model.alignment_dim = 64
    config.optimizer.decay_epochs = 2
    return config
