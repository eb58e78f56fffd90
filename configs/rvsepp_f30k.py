"""RVSE++ on Flickr30K (paper 004, table 5): RVSE(MLP) with SelHN, and BERT for the texts."""

from ml_collections import ConfigDict

from configs import rvse_mlp_selhn_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = rvse_mlp_selhn_f30k.get_config()
    config.epochs = 30
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.initialize.bert = 'data/bert-base-uncased'
    config.augmentation.keep_special_tokens = True
    config.model.text = dict(name='text.BERTEncoder', size='base', dropout=0.1, output_dropout=0.0, dtype='float32')
    config.optimizer.factors = dict(bert=0.1)
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_epochs = 15
    return config
