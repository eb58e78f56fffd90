"""TAGS-DC large on Flickr30K, stage 2 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs.tags import tags_large_f30k
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_large_f30k.get_config()
    config.epochs = 3
    config.optimizer.learning_rate = 1e-5
    config.synthesis.temperature = 1.5
    config.terms.synthetic.weight = 5e-4
    return correct(config, first='runs/tags_large_f30k')
