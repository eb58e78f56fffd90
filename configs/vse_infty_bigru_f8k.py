"""VSE-infinity with a GRU on Flickr8k grid features (smaller)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_infty_bigru_f30k.get_config()
    config.epochs = 8
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.model.text.bidirectional = False  # half the time on a CPU
    config.model.text.word_dim = 128
    config.optimizer.decay_epochs = 6
    return config
