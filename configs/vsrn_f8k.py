"""VSRN on Flickr8k grid features, smaller, for a CPU (Li et al., 2019, on other data; 512 dimensions, 10 epochs)."""

from ml_collections import ConfigDict

from configs import vsrn_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vsrn_f30k.get_config()
    config.epochs = 10
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.model.caption_dim = 256
    config.optimizer.learning_rate = 5e-4  # as VSE++'s there; not tuned
    config.optimizer.decay_epochs = 7
    config.evaluation.every_steps = None
    return config
