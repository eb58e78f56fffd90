"""UNITER (Chen et al. 2020b), fine-tuned with hard negatives as the baseline of Fan et al. (2022).

Set `initialize.uniter` to released weights and `vocabulary.path` to BERT's cased vocab.txt. For `pretrain`, set
`initialize.bert` to the weights of BERT; it is a short pre-training with masked words and image-text matching only.
The reduced variants (scenes, f8k) are tiny, trained from scratch, and initialized from their `pretrain` run.

Example: --config uniter:large,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

SYSTEM = ('uniter', 'uniter_mlm', 'pretrain')  # uniter_mlm: section 3.2 of Fan et al., the generator of `tags_sg`
SIZE = ('base', 'large')
SCHEDULE = {  # epochs, batch size, learning rate; released are 5,000 steps
    ('base', 'f30k'): (4, 128, 5e-5),
    ('base', 'coco'): (1, 128, 5e-5),
    ('large', 'f30k'): (4, 128, 5e-5),
    ('large', 'coco'): (1, 128, 3e-5),
    ('base', 'scenes'): (1, 8, 3e-4),  # reduced: the model is tiny
    ('base', 'f8k'): (1, 16, 3e-4),
}
PRETRAIN = {  # epochs, batch size, learning rate
    'f30k': (10, 32, 5e-5),
    'coco': (10, 32, 5e-5),
    'scenes': (6, 16, 1e-3),
    'f8k': (2, 8, 1e-3),
}
CANDIDATES = {'f30k': (400, 31), 'coco': (400, 31), 'scenes': (32, 7), 'f8k': (16, 3)}  # per query: scored, then kept
MASKED_WEIGHT = {'uniter_mlm': 0.1, 'pretrain': 1.0}  # of masked language modeling
MASKING = {  # masked views per caption, and the phrases that are masked
    ('uniter_mlm', 'f30k'): (20, 'scene_graphs.rules'),
    ('uniter_mlm', 'coco'): (20, 'scene_graphs.rules'),
    ('uniter_mlm', 'scenes'): (8, 'scene_graphs.gold'),
    ('uniter_mlm', 'f8k'): (4, 'scene_graphs.rules'),
    ('pretrain', 'f30k'): (1, ''),
    ('pretrain', 'coco'): (1, ''),
    ('pretrain', 'scenes'): (4, 'scene_graphs.gold'),
    ('pretrain', 'f8k'): (2, 'scene_graphs.rules'),
}
REDUCED = ('scenes', 'f8k')

SETTINGS = {
    'uniter,base,f30k': (('UNITER (base)', 'f30k', 'TAGS-DC table 1'),),
    'uniter,base,coco': (('UNITER (base)', 'coco', 'TAGS-DC table 1'),),
    'uniter,large,f30k': (('UNITER (large)', 'f30k', 'TAGS-DC table 1'),),
    'uniter,large,coco': (('UNITER (large)', 'coco', 'TAGS-DC table 1'),),
    'uniter_mlm,base,f30k': (),
    'uniter_mlm,base,coco': (),
    'pretrain,base,f30k': (),
    'uniter,scenes': (),
    'uniter_mlm,scenes': (),
    'pretrain,scenes': (),
    'uniter,f8k': (),
    'pretrain,f8k': (),
}


def get_config(setting: str = 'uniter,base,f30k') -> ConfigDict:
    """Returns the config of a setting.

    Raises:
      ValueError: if a reduced variant of UNITER large is asked for.
    """
    system, size, data = common.parse(setting, SYSTEM, SIZE, common.BOXES)
    if (size, data) not in SCHEDULE:
        raise ValueError(f"the reduced variant '{data}' is tiny: leave the word '{size}' out")
    config = default.get_config()
    config.data = common.BOXES[data]
    config.epochs, config.batch_size, learning_rate = PRETRAIN[data] if system == 'pretrain' else SCHEDULE[size, data]
    config.drop_last = True  # released are numbers of steps, not of epochs
    config.vocabulary.path = 'data/bert-base-cased/vocab.txt'
    config.model = dict(name='uniter.UNITER', size=size, dropout=0.1, dtype='bfloat16', heads=('mlm',))
    config.optimizer = dict(
        name='adamw_with_warm_up',
        learning_rate=learning_rate,
        weight_decay=0.01,
        factors=dict(),
        warm_up=0.1,
        b2=0.98,
        epsilon=1e-6,
        clip_norm=2.0,
    )
    config.evaluation.every_steps = 500
    config.masking.num_views, config.scene_graphs.source = MASKING.get((system, data), (0, ''))
    if system == 'pretrain':
        config.candidates = dict(source='in_batch', same_image='ignored')
        config.terms = dict(matching=common.mean_term('ranking.matching_cross_entropy', weight=0.5))
    else:
        num_candidates, num_hard = CANDIDATES[data]
        config.candidates = dict(source='shortlist', num_extra=num_candidates - config.batch_size, num_hard=num_hard)
        config.terms = dict(ranking=common.mean_term('ranking.mean_of_hinges', weight=1.0, margin=0.2))
    if system in MASKED_WEIGHT:
        masked = common.mean_term('tokens.masked_language_modeling', weight=MASKED_WEIGHT[system])
        config.terms = dict(config.terms.to_dict(), masked=masked)
    if data in REDUCED:
        config.vocabulary = dict(path='', min_count=1 if data == 'scenes' else 4)
        config.model.size, config.model.dtype, config.model.dropout = 'tiny', 'float32', 0.0
        config.evaluation.every_steps = None
        if system != 'pretrain':
            config.members.target.init_from = common.run_of('uniter', f'pretrain,{data}')
    return config
