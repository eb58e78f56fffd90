"""UNITER (Chen et al. 2020b), fine-tuned with hard negatives as the baseline of Fan et al. (2022).

Set `initialize.uniter` to released weights and `vocabulary.path` to BERT's cased vocab.txt. For `pretrain`, set
`initialize.bert` to the weights of BERT; it is a short pre-training with masked words and image-text matching only.

Example: --config uniter:large,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

SYSTEM = ('uniter', 'uniter_mlm', 'pretrain')  # uniter_mlm: section 3.2 of Fan et al., the generator of `tags_sg`
SIZE = ('base', 'large')
BOXES = {'f30k': common.precomp('data/f30k_boxes'), 'coco': common.precomp('data/coco_boxes')}  # models read positions
SCHEDULE = {  # released are 5,000 steps
    ('base', 'f30k'): dict(epochs=4, learning_rate=5e-5),
    ('base', 'coco'): dict(epochs=1, learning_rate=5e-5),
    ('large', 'f30k'): dict(epochs=4, learning_rate=5e-5),
    ('large', 'coco'): dict(epochs=1, learning_rate=3e-5),
}
BATCH_SIZE = 128
NUM_CANDIDATES = 400  # per query
NUM_HARD = 31  # the number of these that are ranked


@common.preset(SYSTEM, SIZE, BOXES)
def get_config(system: str, size: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    schedule = dict(epochs=10, learning_rate=5e-5) if system == 'pretrain' else SCHEDULE[size, data]
    config = default.get_config()
    config.data = BOXES[data]
    config.epochs = schedule['epochs']
    config.batch_size = 32 if system == 'pretrain' else BATCH_SIZE
    config.drop_last = True  # released are numbers of steps, not of epochs
    config.vocabulary.path = 'data/bert-base-cased/vocab.txt'
    config.model = dict(name='uniter.UNITER', size=size, dropout=0.1, dtype='bfloat16', heads=('mlm',))
    optimizer = dict(weight_decay=0.01, warm_up=0.1, b2=0.98, epsilon=1e-6, clip_norm=2.0)
    common.warm_up(config, schedule['learning_rate'], **optimizer)
    config.evaluation.every_steps = 500
    if system == 'pretrain':
        config.masking.num_views = 1  # single words
        config.candidates = dict(source='in_batch', same_image='ignored')
        config.terms = dict(matching=common.mean_term('ranking.matching_cross_entropy', weight=0.5))
    else:
        config.candidates = dict(source='shortlist', num_extra=NUM_CANDIDATES - BATCH_SIZE, num_hard=NUM_HARD)
        config.terms = dict(ranking=common.mean_term('ranking.mean_of_hinges', weight=1.0, margin=0.2))
    if system == 'uniter_mlm':
        config.masking.num_views = 20
        config.scene_graphs.source = 'scene_graphs.rules'  # phrases
    if system != 'uniter':
        weight = 1.0 if system == 'pretrain' else 0.1
        config.terms.masked = common.mean_term('tokens.masked_language_modeling', weight=weight)
    return config
