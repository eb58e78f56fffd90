"""SGR and SAF (Diao et al. 2021); published SGRAF is the mean of the similarities of both.

Example: --config sgraf:saf,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

REASONING = {
    'sgr': dict(name='alignment.GraphReasoning', steps=3),
    'saf': dict(name='alignment.AttentionFiltration'),
}
SCHEDULE = {
    ('sgr', 'f30k'): dict(epochs=40, learning_rate=2e-4, decay_epochs=30),
    ('saf', 'f30k'): dict(epochs=30, learning_rate=2e-4, decay_epochs=20),
    ('sgr', 'coco'): dict(epochs=20, learning_rate=2e-4, decay_epochs=10),
    ('saf', 'coco'): dict(epochs=20, learning_rate=2e-4, decay_epochs=10),
}


@common.preset(REASONING, common.CROSS_ATTENTION, common.DATA)
def get_config(reasoning: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
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
    common.rank_with(config, common.CROSS_ATTENTION[loss])
    common.set_schedule(config, **SCHEDULE[reasoning, data])
    return config
