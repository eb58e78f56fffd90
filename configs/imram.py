"""IMRAM (Chen et al. 2020c): SCAN in three steps with a memory between them.

Example: --config imram:t2i,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common

DIRECTION = ('both', 't2i', 'i2t')  # Full-, Text- and Image-IMRAM
LAMBDA = {'f30k': 9.0, 'coco': 11.0}  # as in the released code; Flickr30K's script is i2t, COCO's t2i


@common.preset(DIRECTION, common.CROSS_ATTENTION, common.SCHEDULE)
def get_config(direction: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    arguments = dict(direction=direction, steps=3, lambda_softmax=LAMBDA[data])  # the released script has 1 step
    return common.regions_and_words('imram.IMRAM', data, loss, common.SCHEDULE[data], **arguments)
