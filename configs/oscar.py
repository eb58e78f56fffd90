"""OSCAR (Li et al. 2020) and VinVL (Zhang et al. 2021), fine-tuned for retrieval, alone or with DBL (Diao et al. 2024).

Set `initialize.oscar` to pre-trained weights and `vocabulary.path` to BERT's uncased vocab.txt. With RM or AM, the
model learns from itself as fine-tuned before (OAS); their scores are probabilities, and the means of their hinges start
at 0.2.

Example: --config oscar:rm,base,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, dbl, default

LOSSES = ('alone', 'rm', 'am')
SIZE = ('base', 'large', 'vinvl_base', 'vinvl_large')
LEARNING_RATE = {'base': 2e-5, 'large': 1e-5, 'vinvl_base': 2e-5, 'vinvl_large': 7.5e-6}
DATA = {'coco': common.precomp('data/coco_oscar', dev_images=200)}  # 200,000 pairs


@common.preset(LOSSES, SIZE, DATA)
def get_config(loss: str, size: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = default.get_config()
    config.data = DATA[data]
    if size.startswith('vinvl'):
        config.data.root = 'data/coco_vinvl'
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    size_of_bert = size.removeprefix('vinvl_')
    config.model = dict(name='oscar.OSCAR', size=size_of_bert, dropout=0.1, dtype='bfloat16', image_norm=True)
    config.candidates = dict(source='sampled')
    config.terms = dict(ranking=common.mean_term('ranking.matching_cross_entropy', weight=1.0))
    optimizer = dict(weight_decay=0.05, warm_up=0.0, b2=0.999, epsilon=1e-8, clip_norm=1.0)
    common.warm_up(config, LEARNING_RATE[size], **optimizer)
    if loss != 'alone':
        dbl.boost(config, loss, 'oas', common.run_of(f'oscar:alone,{size},{data}'))
    return config
