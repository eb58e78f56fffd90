"""BFAN (Liu et al. 2019); published BFAN is the mean of the similarities of an equal and a prob model.

Example: --config bfan:prob,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

FOCAL = ('equal', 'prob')  # the two weightings of fragments in focal attention
SCHEDULE = {
    'f30k': dict(epochs=15, learning_rate=2e-4, decay_epochs=15),  # as released: the rate never decays
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=15),
}


@common.preset(FOCAL, common.CROSS_ATTENTION, SCHEDULE)
def get_config(focal: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
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
    common.rank_with(config, common.CROSS_ATTENTION[loss])
    common.set_schedule(config, **SCHEDULE[data])
    return config
