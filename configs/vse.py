"""VSE(FC), VSE(MLP), RVSE(MLP) and RVSE++ with the losses of Li et al. (2023), SelHN among them.

`mean` is VSE(FC) with the poolings of VSE++, `sum_max` the loss of VSE-infinity, `softmax` that of CLIP at a fixed
temperature. None of the three is in the paper.

Example: --config vse:rvse,selhn,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

MODEL = {  # figure 2: the MLP beside the fully connected layer of the regions
    'fc': 'none',
    'mlp': 'plain',
    'rvse': 'residual',
    'rvsepp': 'residual',  # with BERT
    'mean': 'none',  # without GPO
}
LOSS = {  # tables 1 and 3
    'selhn': common.LOSS['selhn'],
    'max': common.LOSS['max'],  # HN: hard negatives
    'sum': dict(loss='ranking.sum_of_hinges', margin=0.2),  # Triplet: all negatives
    'shn': dict(loss='ranking.semi_hard_hinge', margin=0.2),  # semi-hard negatives
    'sct': dict(loss='ranking.selective_contrastive', margin=0.2),  # selectively contrastive triplet loss
    'sum_max': common.LOSS['max'],  # after one epoch of 'sum'
    'softmax': common.LOSS['softmax'],
}

SETTINGS = {
    'fc,sum,f30k': (('VSE (FC) + Triplet', 'f30k', 'SelHN table 3'),),
    'fc,max,f30k': (('VSE (FC) + HN', 'f30k', 'SelHN table 3'),),
    'fc,shn,f30k': (('VSE (FC) + SHN', 'f30k', 'SelHN table 3'),),
    'fc,sct,f30k': (('VSE (FC) + SCT', 'f30k', 'SelHN table 3'),),
    'fc,selhn,f30k': (('VSE (FC) + SelHN', 'f30k', 'SelHN table 3'),),
    'fc,sum,coco': (('VSE (FC) + Triplet', 'coco', 'SelHN table 3'),),
    'fc,max,coco': (('VSE (FC) + HN', 'coco', 'SelHN table 3'),),
    'fc,shn,coco': (('VSE (FC) + SHN', 'coco', 'SelHN table 3'),),
    'fc,sct,coco': (('VSE (FC) + SCT', 'coco', 'SelHN table 3'),),
    'fc,selhn,coco': (('VSE (FC) + SelHN', 'coco', 'SelHN table 3'),),
    'mlp,sum,f30k': (('VSE (MLP) + Triplet', 'f30k', 'SelHN table 1'),),
    'mlp,max,f30k': (('VSE (MLP) + HN', 'f30k', 'SelHN table 1'),),
    'mlp,selhn,f30k': (('VSE (MLP) + SelHN', 'f30k', 'SelHN table 1'),),
    'rvse,sum,f30k': (('RVSE (MLP) + Triplet', 'f30k', 'SelHN table 1'),),
    'rvse,max,f30k': (('RVSE (MLP) + HN', 'f30k', 'SelHN table 1'),),
    'rvse,selhn,f30k': (('RVSE (MLP) + SelHN', 'f30k', 'SelHN table 1'),),
    'rvsepp,selhn,f30k': (('RVSE++', 'f30k', 'SelHN table 5'),),
    'rvsepp,selhn,coco': (('RVSE++', 'coco', 'SelHN table 6'), ('RVSE++', 'coco', 'SelHN table 11')),
    **{f'fc,{loss},f8k': () for loss in LOSS},
    **{
        f'{model},{loss},f8k': ()
        for model in ('mean', 'mlp', 'rvse')
        for loss in ('sum', 'max', 'sum_max', 'selhn', 'softmax')
    },
    'rvsepp,selhn,f8k': (),  # vocabulary.path must name a vocab.txt of BERT
}


def get_config(setting: str = 'fc,selhn,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    model, loss, data = common.parse(setting, MODEL, LOSS, common.DATA)
    config = default.get_config()
    config.data = common.DATA[data]
    config.drop_last = True
    config.augmentation.drop_regions = 0.2
    config.augmentation.change_words = 0.2
    config.model.image.mlp = MODEL[model]
    config.model.image.norm_padding = MODEL[model] != 'none'
    config.model.text.bidirectional = True
    config.model.image_pooling = config.model.text_pooling = 'mean' if model == 'mean' else 'gpo'
    common.rank_with(config, LOSS[loss])
    if loss == 'sum_max':
        common.sum_first(config, epochs=1)
    config.optimizer.weight_decay = 0.01  # PyTorch's default
    common.set_schedule(config, epochs=20, learning_rate=5e-4, decay_epochs=20)  # the rate of the ablations is constant
    if model == 'rvsepp':
        common.use_bert(config)
        common.set_schedule(config, epochs=30, learning_rate=5e-4, decay_epochs=15)
    if data == 'f8k':
        common.reduce(config)
        if model == 'rvsepp':  # SelHN does not train a BERT from random parameters
            common.sum_first(config, epochs=1)
    return config
