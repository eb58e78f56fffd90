"""VSE(FC) that DBL boosts on Flickr8k, alone: max of hinges after two epochs of their sum (as paper 002, smaller).

Max of hinges from the start leaves this model where equal scores put it, on these data (docs/results.md).
"""

from ml_collections import ConfigDict

from configs import vse_fc_max_f8k
from configs.scan_t2i_avg_f8k import sum_first


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_max_f8k.get_config()
    config.epochs = 4
    config.optimizer.decay_epochs = 3
    return sum_first(config, epochs=2)
