"""SGR and SAF (Diao et al. 2021); published SGRAF is the mean of the similarities of both.

Example: --config sgraf:saf,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common

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
    arguments = dict(
        alignment_dim=256,
        image_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=36),  # slots: regions of an image
        text_whole=dict(name='alignment.SelfAttention', dropout=0.4, slots=None),
        reasoning=REASONING[reasoning],
        lambda_softmax=9.0,
        activation='sigmoid',
    )
    config = common.regions_and_words('sgraf.SGRAF', data, loss, SCHEDULE[reasoning, data], **arguments)
    config.model.text.dropout = 0.4
    return config
