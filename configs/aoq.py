"""Adaptive offline quintuplet losses (AOQ, Chen et al. 2020) on VSRN, BFAN, SCAN and VSE++, in two training stages.

The first stage trains the model that mines the negatives: VSRN, or VSE++ on Flickr8k.

Example: --config aoq:bfan_equal,adapoffquin,coco
"""

from ml_collections import ConfigDict

from jitm.configs import bfan, common, scan, vsepp, vsrn

MODEL = {  # the file and its words
    'vsrn': (vsrn, ''),
    'bfan_equal': (bfan, 'equal'),
    'bfan_prob': (bfan, 'prob'),
    'scan_t2i_avg': (scan, 't2i,avg'),
    'scan_t2i_lse': (scan, 't2i,lse'),
    'scan_i2t_avg': (scan, 'i2t,avg'),
    'scan_i2t_lse': (scan, 'i2t,lse'),
    'vsepp': (vsepp, 'vsepp'),
}
LOSS = {  # section 3 and table 3
    'adapoffquin': dict(loss='offline.adaptive_offline_quintuplet', alpha=0.3, beta=1.5),
    'offquin': dict(loss='offline.offline_quintuplet'),
    'offtri': dict(loss='offline.offline_triplet'),
    'onlinequin': dict(loss='offline.online_quintuplet'),
    'onlyoffline': dict(loss='offline.offline_quintuplet', online_weight=0.0),
    # w/o OfflineAdap; the paper tuned alpha and beta anew without stating their values
    'withoutadap': dict(loss='offline.adaptive_offline_quintuplet', alpha=0.3, beta=1.5, weigh_by_positive=True),
    'finetune': dict(loss='offline.adaptive_offline_quintuplet', alpha=0.3, beta=1.5),  # from the trained model
}
SCHEDULE = {  # of the second stage on Flickr30K and COCO, section 4.2
    'VSRN': dict(epochs=20, learning_rate=2e-4, decay_epochs=10),
    'BFAN': dict(epochs=15, learning_rate=5e-4, decay_epochs=10),
    'SCAN': dict(epochs=15, learning_rate=5e-4, decay_epochs=10),
}
SYSTEM = {  # published are means over two models of each
    'vsrn': 'VSRN',
    'bfan_equal': 'BFAN',
    'bfan_prob': 'BFAN',
    'scan_t2i_avg': 'SCAN',
    'scan_t2i_lse': 'SCAN',
    'scan_i2t_avg': 'SCAN',
    'scan_i2t_lse': 'SCAN',
}
TABLE_3 = {
    'finetune': 'Fine-tune',
    'onlinequin': 'OnlineQuin',
    'onlyoffline': 'OnlyOffline',
    'withoutadap': 'w/o OfflineAdap',
}
SETTINGS = {
    **{
        f'{model},{loss},coco': ((f'{SYSTEM[model]} + {name}', 'coco', 'AOQ table 1'),)
        for model in ('vsrn', 'bfan_equal', 'bfan_prob', 'scan_t2i_avg', 'scan_i2t_lse')
        for loss, name in (('offtri', 'OffTri'), ('offquin', 'OffQuin'), ('adapoffquin', 'AOQ'))
    },
    **{
        f'{model},adapoffquin,f30k': ((f'{SYSTEM[model]} + AOQ', 'f30k', 'AOQ table 2'),)
        for model in ('vsrn', 'bfan_equal', 'bfan_prob', 'scan_i2t_avg', 'scan_t2i_lse')
    },
    **{
        f'{model},{loss},coco': ((f'{SYSTEM[model]} + AOQ ({name})', 'coco', 'AOQ table 3'),)
        for model in ('vsrn', 'bfan_prob')
        for loss, name in TABLE_3.items()
    },
    **{f'vsepp,{loss},f8k': () for loss in LOSS},
    **{f'{model},adapoffquin,f8k': () for model in ('vsrn', 'bfan_equal', 'scan_t2i_avg')},
}


def get_config(setting: str = 'vsrn,adapoffquin,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    model, loss, data = common.parse(setting, MODEL, LOSS, common.DATA)
    miner = 'vsepp' if data == 'f8k' and model != 'vsrn' else 'vsrn'
    first, config = _alone(miner, data), _alone(model, data)
    if data != 'f8k' and model in SYSTEM:
        first.epochs = 2 * first.optimizer.decay_epochs
        common.set_schedule(config, **SCHEDULE[SYSTEM[model]])
    schedule = {key: config.terms.ranking[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')}
    config.terms.ranking = dict(LOSS[loss], online_margin=0.2, offline_margin=0.0, **schedule)
    if loss == 'finetune' and miner != model:  # one stage, from the model's own run, with the miner's negatives
        module, words = MODEL[model]
        config.members.target.init_from = common.run_of(module.__name__, f'{words},{data}')
        config.offline.path = common.run_of('aoq', f'{miner},adapoffquin,{data}') + '/candidates'
    else:
        fine_tune = loss == 'finetune'
        if fine_tune and data == 'f8k':
            common.rank_with(config, config.terms.ranking.to_dict() | dict(start_epoch=0))
        config.stages = dict(first=common.first_stage(first), top_h_texts=300, top_h_images=60, fine_tune=fine_tune)
    return config


def _alone(model: str, data: str) -> ConfigDict:
    module, words = MODEL[model]
    return module.get_config(f'{words},{data}'.strip(','))
