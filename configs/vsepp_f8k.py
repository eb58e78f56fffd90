"""VSE++ on Flickr8k grid features, small enough for a CPU (paper 003 on other data; 512 dimensions, 10 epochs)."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 10
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.optimizer.learning_rate = 5e-4
    config.optimizer.decay_epochs = 7
    return config
