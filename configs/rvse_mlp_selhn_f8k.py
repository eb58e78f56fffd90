"""RVSE(MLP) with selectively hard negatives (SelHN) on Flickr8k grid features (as paper 004, smaller)."""

from ml_collections import ConfigDict

from configs import rvse_mlp_selhn_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = rvse_mlp_selhn_f30k.get_config()
    config.epochs = 8
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.model.text.bidirectional = False  # half the time on a CPU
    config.model.text.word_dim = 128
    config.optimizer.decay_epochs = 6
    return config
