"""IMRAM (Chen et al. 2020c): SCAN in three steps with a memory between them.

Example: --config imram:t2i,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

DIRECTION = ('both', 't2i', 'i2t')  # Full-, Text- and Image-IMRAM
LAMBDA = {'f30k': 9.0, 'coco': 11.0}  # as released; the script of Flickr30K is i2t, that of COCO t2i
SCHEDULE = {
    'f30k': dict(epochs=30, learning_rate=2e-4, decay_epochs=15),
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=10),
}


@common.preset(DIRECTION, common.CROSS_ATTENTION, SCHEDULE)
def get_config(direction: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = default.get_config()
    config.data = common.DATA[data]
    config.model = dict(
        name='imram.IMRAM',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True),
        direction=direction,
        steps=3,  # 1 in the released script of Flickr30K
        lambda_softmax=LAMBDA[data],
    )
    common.rank_with(config, common.CROSS_ATTENTION[loss])
    common.set_schedule(config, **SCHEDULE[data])
    return config
