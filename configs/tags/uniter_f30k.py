"""UNITER base on Flickr30K, fine-tuned with hard negatives (Chen et al., 2020; the baseline of paper 001).

Set `initialize.uniter` to released weights and `vocabulary.path` to BERT's cased vocab.txt. Released are 5,000 steps.
"""

from ml_collections import ConfigDict

from configs import default

HINGES = dict(loss='ranking.mean_of_hinges', margin=0.2)
COUNTS = dict(start_epoch=0, end_epoch=None, reduction='mean')
CANDIDATES = 400  # of each query, its own among them


def fine_tune(config: ConfigDict, *, size: str = 'base', hardest: int = 31, learning_rate: float = 5e-5) -> ConfigDict:
    """Makes a setting one of UNITER with hard negatives.

    Args:
      config: the setting, with data, epochs and batch_size.
      size: of the model.
      hardest: how many candidates of each query are kept.
      learning_rate: the highest.
    """
    config.vocabulary.path = 'data/bert-base-cased/vocab.txt'
    config.model = dict(name='uniter.UNITER', size=size, dropout=0.1, dtype='bfloat16', heads=('mlm',))
    config.candidates = dict(source='shortlist', num_extra=CANDIDATES - config.batch_size, num_hard=hardest)
    config.terms = dict(ranking=dict(HINGES, weight=1.0, **COUNTS))
    config.optimizer = dict(
        name='adamw_with_warm_up',
        learning_rate=learning_rate,
        weight_decay=0.01,
        factors=dict(),
        warm_up=0.1,
        clip_norm=2.0,
    )
    config.evaluation.every_steps = 500
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/f30k_boxes'
    config.epochs = 4
    return fine_tune(config)
