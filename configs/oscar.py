"""OSCAR (Li et al. 2020) and VinVL (Zhang et al. 2021), fine-tuned for retrieval, alone or with DBL (Diao et al. 2024).

Set `initialize.oscar` to pre-trained weights and `vocabulary.path` to BERT's uncased vocab.txt. With RM or AM, the
model learns from itself as fine-tuned before (OAS); their scores are probabilities, and the means of their hinges start
at 0.2. The reduced variants (scenes, f8k) are tiny and trained from scratch; the tags of f8k are a small detector's.

Example: --config oscar:rm,base,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, dbl, default

LOSS = ('alone', 'rm', 'am')
SIZE = ('base', 'large', 'vinvl_base', 'vinvl_large')
LEARNING_RATE = {'base': 2e-5, 'large': 1e-5, 'vinvl_base': 2e-5, 'vinvl_large': 7.5e-6}
SCHEDULE = {  # epochs, batch size
    'coco': (30, 128),
    'f8k': (8, 32),  # reduced
    'scenes': (8, 16),
}
REDUCED = ('f8k', 'scenes')

SETTINGS = {
    'alone,base,coco': (('OSCAR', 'coco', 'DBL table I'),),
    'alone,large,coco': (('OSCAR (large)', 'coco', 'model zoo of Oscar'),),
    'alone,vinvl_base,coco': (('VinVL (base)', 'coco', 'model zoo of Oscar'),),
    'alone,vinvl_large,coco': (('VinVL (large)', 'coco', 'model zoo of Oscar'),),
    'rm,base,coco': (('OSCAR + RM (OAS)', 'coco', 'DBL table I'),),
    'am,base,coco': (('OSCAR + AM (OAS)', 'coco', 'DBL table I'),),
    'alone,f8k': (),
    'rm,f8k': (),
    'am,f8k': (),
    'alone,scenes': (),
}


def get_config(setting: str = 'alone,base,coco') -> ConfigDict:
    """Returns the config of a setting.

    Raises:
      ValueError: if a reduced variant of another size is asked for.
    """
    loss, size, data = common.parse(setting, LOSS, SIZE, common.TAGGED)
    if data in REDUCED and size != 'base':
        raise ValueError(f"the reduced variant '{data}' is tiny: leave the word '{size}' out")
    config = default.get_config()
    config.data = common.TAGGED[data]
    if size.startswith('vinvl'):
        config.data.root = 'data/coco_vinvl'
    config.epochs, config.batch_size = SCHEDULE[data]
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.model = dict(
        name='oscar.OSCAR', size=size.removeprefix('vinvl_'), dropout=0.1, dtype='bfloat16', image_norm=True
    )
    config.candidates = dict(source='sampled')
    config.terms = dict(ranking=common.mean_term('ranking.matching_cross_entropy', weight=1.0))
    config.optimizer = dict(
        name='adamw_with_warm_up',
        learning_rate=LEARNING_RATE[size],
        weight_decay=0.05,
        factors=dict(),
        warm_up=0.0,
        b2=0.999,
        epsilon=1e-8,
        clip_norm=1.0,
    )
    if data in REDUCED:
        config.vocabulary = dict(path='', min_count=1 if data == 'scenes' else 4)
        config.model.size, config.model.dtype, config.model.dropout = 'tiny', 'float32', 0.0
        config.optimizer.learning_rate, config.optimizer.warm_up = 1e-3, 0.1
    if loss != 'alone':
        words = f'alone,{data}' if data in REDUCED else f'alone,{size},{data}'
        dbl.boost(config, loss, 'oas', data, run=common.run_of('oscar', words))
    return config
