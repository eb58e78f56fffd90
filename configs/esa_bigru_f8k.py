"""ESA with a GRU on Flickr8k grid features (smaller, word vectors from scratch)."""

from ml_collections import ConfigDict

from configs import esa_bigru_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = esa_bigru_f30k.get_config()
    config.epochs = 8
    config.data.root = 'data/f8k_precomp'
    config.model.embed_dim = 512
    config.model.text.bidirectional = False  # half the time on a CPU
    config.model.text.word_dim = 128
    config.optimizer.decay_epochs = 6
    config.initialize.word_vectors = ''
    return config
