"""Combinations of the papers' methods on one dual encoder; which of them help is measured in docs/recipes.md.

Example: --config recipe:rvse,selhn,oss,offline,f8k
"""

from ml_collections import ConfigDict

from jitm.configs import common, dbl, vse

MODEL = ('mean', 'fc', 'rvse')  # of vse.py: mean pooling, GPO, GPO with a residual MLP
LOSS = ('selhn', 'sum_max', 'softmax')  # of vse.py
ANCHOR = {
    'alone': 'one model',
    'oss': 'learns from an anchor that trains beside it (DBL, relative margins)',
}
DATA = ('f8k', 'f30k', 'coco')
NEGATIVES = {
    'in_batch': 'one stage',
    'offline': 'a second stage with negatives that the first mines in all data (AOQ)',
}

SETTINGS = {
    f'{model},{loss},{anchor},{negatives},f8k': ()
    for model in MODEL
    for loss in LOSS
    for anchor in ANCHOR
    for negatives in NEGATIVES
}


def get_config(setting: str = 'mean,selhn,alone,in_batch,f8k') -> ConfigDict:
    """Returns the config of a setting."""
    model, loss, anchor, negatives, data = common.parse(
        setting, MODEL, LOSS, ANCHOR, NEGATIVES, sorted(common.DATA, key='f8k'.__ne__)
    )
    config = vse.get_config(f'{model},{loss},{data}')
    first = common.first_stage(config)
    if anchor == 'oss':
        dbl.boost(config, 'rm', 'oss', data)
    if negatives == 'offline':
        config.stages = dict(first=first, top_h_texts=300, top_h_images=60, fine_tune=False)
        ranking = config.terms.ranking
        schedule = {key: ranking[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')}
        hinges = dict(loss='offline.offline_quintuplet', online_margin=0.2, offline_margin=0.0, online_weight=0.0)
        config.terms = dict(config.terms.to_dict(), offline=dict(hinges, **schedule))
    return config
