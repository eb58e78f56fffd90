"""SCAN (Lee et al. 2018); published SCAN is the mean of the similarities of a t2i and an i2t model.

Example: --config scan:i2t,lse,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

DIRECTION = {  # lambda 1, the inverse temperature of the attention
    't2i': 9.0,  # words attend to regions
    'i2t': 4.0,  # regions attend to words
}
AGGREGATION = {'avg': 'Mean', 'lse': 'LogSumExp'}  # of the relevance of words or regions
LAMBDA_LSE = {('i2t', 'coco'): 20.0, ('i2t', 'f30k'): 5.0}  # lambda 2 of LSE; 6.0 for t2i
DATA = {
    'f30k': dict(epochs=30, learning_rate=2e-4, decay_epochs=15),
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=10),
    'f8k': dict(epochs=10, learning_rate=5e-4, decay_epochs=8),  # reduced
    'scenes': dict(epochs=8, learning_rate=5e-4, decay_epochs=3),  # reduced; three minutes on two CPU cores
}

SETTINGS = {
    't2i,avg,f30k': (('SCAN T2I AVG', 'f30k', 'SelHN table 7'),),
    'i2t,avg,f30k': (('SCAN I2T AVG', 'f30k', 'SelHN table 7'),),
    't2i,lse,f30k': (('SCAN', 'f30k', 'AOQ table 2'),),
    'i2t,lse,f30k': (('SCAN', 'f30k', 'AOQ table 2'),),
    **{
        f'{direction},{aggregation},coco': (('SCAN', 'coco', 'AOQ table 1'),)
        for direction in DIRECTION
        for aggregation in AGGREGATION
    },
    't2i,avg,f8k': (),
    't2i,avg,selhn,f8k': (),
    'i2t,avg,f8k': (),
    't2i,avg,scenes': (),
}


def get_config(setting: str = 't2i,avg,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    direction, aggregation, loss, data = common.parse(setting, DIRECTION, AGGREGATION, common.LOSS, DATA)
    config = default.get_config()
    config.data = common.SCENES if data == 'scenes' else common.DATA[data]
    config.model = dict(
        name='scan.SCAN',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True),
        direction=direction,
        lambda_softmax=DIRECTION[direction],
        aggregation=AGGREGATION[aggregation],
        lambda_lse=LAMBDA_LSE.get((direction, data), 6.0) if aggregation == 'lse' else 6.0,  # no effect on 'Mean'
    )
    if data == 'f8k':
        common.reduce_attention(config)
    common.rank_with(config, common.LOSS[loss])
    if loss == 'max' and data in ('f8k', 'scenes'):
        common.sum_first(config, epochs=1)
    if data == 'scenes':
        config.batch_size, config.drop_last = 64, True
        config.model.embed_dim = config.model.text.word_dim = 128
    common.set_schedule(config, **DATA[data])
    return config
