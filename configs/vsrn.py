"""VSRN (Li et al. 2019); published is the mean of the similarities of two runs.

Example: --config vsrn:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

DATA = {  # the released command lines: the order of normalization and graph, and the schedule
    'f30k': dict(normalize_before_graph=False, batch_norm=True, epochs=30, learning_rate=2e-4, decay_epochs=10),
    'coco': dict(normalize_before_graph=True, batch_norm=False, epochs=30, learning_rate=2e-4, decay_epochs=15),
    'f8k': dict(normalize_before_graph=False, batch_norm=True, epochs=8, learning_rate=5e-4, decay_epochs=6),  # reduced
}

SETTINGS = {
    'f30k': (('VSRN', 'f30k', 'AOQ table 2'),),
    'coco': (('VSRN', 'coco', 'AOQ table 1'),),
    'f8k': (),
}


def get_config(setting: str = 'f30k') -> ConfigDict:
    """Returns the config of a setting."""
    (data,) = common.parse(setting, DATA)
    schedule = dict(DATA[data])
    config = default.get_config()
    config.data = common.DATA[data]
    config.model = dict(
        name='vsrn.VSRN',
        embed_dim=2048,  # of the regions and of the joint space
        word_dim=300,
        graph_layers=4,
        normalize_before_graph=schedule.pop('normalize_before_graph'),
        batch_norm=schedule.pop('batch_norm'),  # of the image vector
        caption=True,  # has a captioner; with False, terms.caption must be left out
        caption_dim=512,
        caption_dropout=0.2,
        caption_length=60,  # longer captions are cut
    )
    config.terms = dict(
        ranking=config.terms.ranking.to_dict(),
        caption=common.mean_term('tokens.captioning', weight=1.0),
    )
    common.set_schedule(config, **schedule)
    config.evaluation.every_steps = 500
    if data == 'f8k':
        common.reduce(config)
        common.sum_first(config, epochs=1)
        config.model.caption_dim = 256
        config.evaluation.every_steps = None
    return config
