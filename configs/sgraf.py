"""SGR and SAF (Diao et al. 2021); published SGRAF is the mean of the similarities of both.

Example: --config sgraf:saf,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

REASONING = {
    'sgr': dict(name='alignment.GraphReasoning', steps=3),
    'saf': dict(name='alignment.AttentionFiltration'),
}
SCHEDULE = {  # epochs, and epochs until the rate decays
    ('sgr', 'f30k'): (40, 30),
    ('saf', 'f30k'): (30, 20),
    ('sgr', 'coco'): (20, 10),
    ('saf', 'coco'): (20, 10),
    ('sgr', 'f8k'): (10, 8),  # reduced
    ('saf', 'f8k'): (10, 8),
}

SETTINGS = {
    'sgr,f30k': (('SGR', 'f30k', 'README of SGRAF'),),
    'saf,f30k': (('SAF', 'f30k', 'README of SGRAF'),),
    'sgr,coco': (('SGR', 'coco', 'README of SGRAF'),),
    'saf,coco': (('SAF', 'coco', 'README of SGRAF'),),
    'sgr,f8k': (),
    'saf,f8k': (),
    'sgr,selhn,f8k': (),
    'saf,selhn,f8k': (),
}


def get_config(setting: str = 'sgr,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    reasoning, loss, data = common.parse(setting, REASONING, common.LOSS, common.DATA)
    config = default.get_config()
    config.data = common.DATA[data]
    config.model = dict(
        name='sgraf.SGRAF',
        embed_dim=1024,
        alignment_dim=256,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True, dropout=0.4),
        image_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=36),  # slots: regions of an image
        text_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=None),
        reasoning=REASONING[reasoning],
        lambda_softmax=9.0,
        activation='sigmoid',
    )
    common.rank_with(config, common.LOSS[loss])
    if data == 'f8k':
        common.reduce_attention(config)
        config.model.alignment_dim = 64
        if loss == 'max':
            common.sum_first(config, epochs=1)
    config.epochs, config.optimizer.decay_epochs = SCHEDULE[reasoning, data]
    return config
