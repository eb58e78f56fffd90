"""BFAN (Liu et al. 2019); published BFAN is the mean of the similarities of an equal and a prob model.

Example: --config bfan:prob,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

FOCAL = ('equal', 'prob')  # the two weightings of fragments in focal attention
DATA = {
    'f30k': dict(epochs=15, learning_rate=2e-4, decay_epochs=15),  # as released: the rate never decays
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=15),
    'f8k': dict(epochs=10, learning_rate=5e-4, decay_epochs=8),  # reduced
}

SETTINGS = {
    'equal,f30k': (('BFAN (equal)', 'f30k', 'SelHN table 7'),),
    'prob,f30k': (('BFAN (prob)', 'f30k', 'SelHN table 7'),),
    'equal,coco': (('BFAN', 'coco', 'AOQ table 1'),),
    'prob,coco': (('BFAN', 'coco', 'AOQ table 1'),),
    'equal,f8k': (),
    'equal,selhn,f8k': (),
    'prob,f8k': (),
}


def get_config(setting: str = 'equal,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    focal, loss, data = common.parse(setting, FOCAL, common.LOSS, DATA)
    config = default.get_config()
    config.data = common.DATA[data]
    config.model = dict(
        name='bfan.BFAN',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True),
        focal=focal,
        lambda_softmax=20.0,
    )
    if data == 'f8k':
        common.reduce_attention(config)
    common.rank_with(config, common.LOSS[loss])
    if loss == 'max' and data == 'f8k':
        common.sum_first(config, epochs=1)
    common.set_schedule(config, **DATA[data])
    return config
