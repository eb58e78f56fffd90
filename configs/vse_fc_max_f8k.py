"""VSE(FC) with hard negatives (HN) on Flickr8k grid features (as paper 004, smaller)."""

from ml_collections import ConfigDict

from configs import vse_fc_max_f30k


def shrink(config: ConfigDict) -> ConfigDict:
    """Makes a setting with a GRU its small twin on Flickr8k."""
    config.epochs = 8
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.model.text.bidirectional = False  # half the time on a CPU
    config.model.text.word_dim = 128
    config.optimizer.decay_epochs = 6
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return shrink(vse_fc_max_f30k.get_config())
