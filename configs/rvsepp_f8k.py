"""RVSE++ on Flickr8k grid features (smaller): a tiny BERT from scratch; set vocabulary.path to a vocab.txt of BERT."""

from ml_collections import ConfigDict

from configs import rvsepp_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = rvsepp_f30k.get_config()
    config.epochs = 8
    config.data.root = 'data/f8k_precomp'
    config.initialize.bert = ''
    config.model.embed_dim = 512
    config.model.text.size = 'tiny'
    config.optimizer.factors = dict()
    config.optimizer.decay_epochs = 6
    return config
