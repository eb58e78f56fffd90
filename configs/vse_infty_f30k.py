"""VSE-infinity with BERT on Flickr30K (Chen et al., 2021; regions; in table 5 of paper 004)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_infty_bigru_f30k.get_config()
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.initialize.bert = 'data/bert-base-uncased'
    config.augmentation.keep_special_tokens = True
    config.model.text = dict(name='text.BERTEncoder', size='base', dropout=0.1, output_dropout=0.0, dtype='float32')
    config.optimizer.factors = dict(bert=0.1)
    config.optimizer.weight_decay = 1e-4
    return config
