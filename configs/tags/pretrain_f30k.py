"""UNITER base on Flickr30K: a short pre-training of masked words and matches, where there are no released weights.

Not as published: UNITER is pre-trained on four data sets, on masked regions and on alignments as well. Set
`initialize.bert` to the weights of BERT.
"""

from ml_collections import ConfigDict

from configs import default
from configs.tags.uniter_f30k import COUNTS, fine_tune


def pretrain(config: ConfigDict) -> ConfigDict:
    """Makes a setting one of UNITER's pre-training by words and matches."""
    config = fine_tune(config)
    config.candidates = dict(source='in_batch', same_image='ignored', margin_temperature=5.0)
    config.masking.num_views = 1
    config.terms = dict(
        matching=dict(loss='ranking.matching_cross_entropy', weight=0.5, **COUNTS),
        masked=dict(loss='tokens.masked_language_modeling', weight=1.0, **COUNTS),
    )
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/f30k_boxes'
    config.epochs, config.batch_size = 10, 32
    return pretrain(config)
