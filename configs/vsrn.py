"""VSRN (Li et al. 2019); published is the mean of the similarities of two runs.

Example: --config vsrn:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

RELEASED = {  # the command lines; batch_norm applies to the image vector
    'f30k': dict(normalize_before_graph=False, batch_norm=True, decay_epochs=10),
    'coco': dict(normalize_before_graph=True, batch_norm=False, decay_epochs=15),
}


@common.preset(RELEASED)
def get_config(data: str) -> ConfigDict:
    """Returns the config of a preset."""
    released = dict(RELEASED[data])
    decay_epochs = released.pop('decay_epochs')
    config = default.get_config()
    config.data = common.DATA[data]
    config.model = dict(
        name='vsrn.VSRN',
        embed_dim=2048,  # regions and joint space
        word_dim=300,
        graph_layers=4,
        caption=True,  # has a captioner; with False, terms.caption must be left out
        caption_dim=512,
        caption_dropout=0.2,
        caption_length=60,  # longer captions are cut
        **released,
    )
    config.terms.caption = common.mean_term('tokens.captioning', weight=1.0)
    common.set_schedule(config, epochs=30, learning_rate=2e-4, decay_epochs=decay_epochs)
    config.evaluation.every_steps = 500
    return config
