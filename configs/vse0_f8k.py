"""VSE0 on Flickr8k grid features: as `vsepp_f8k.py` with the sum of hinges and image vectors not normalised."""

from ml_collections import ConfigDict

from configs import vsepp_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vsepp_f8k.get_config()
    config.terms.ranking.loss = 'ranking.sum_of_hinges'
    config.model.normalize_images = False
    config.optimizer.learning_rate = 2e-3  # roughly tuned, as 5e-4 is for VSE++: docs/results.md
    return config
