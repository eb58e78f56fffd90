"""UNITER on Flickr8k grid features: tiny, from scratch, with in-batch negatives; for a CPU, not tuned.

The published recipe (released weights, 399 random negatives of which the hardest 31 count) is not this one. Set
vocabulary.path to a vocab.txt of BERT.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 8
    config.batch_size = 16
    config.data.root = 'data/f8k_precomp'
    config.data.dev_images = 200  # every pair takes a pass through the transformer
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.model = dict(name='uniter.UNITER', size='tiny', dropout=0.1, dtype='float32', heads=())
    hinges = config.terms.ranking.to_dict() | dict(reduction='mean')
    config.terms = dict(
        warm_up=dict(hinges, loss='ranking.sum_of_hinges', until=4),
        ranking=dict(hinges, since=4),
    )
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.01
    config.optimizer.decay_epochs = 6
    return config
