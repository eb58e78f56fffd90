"""GSMN (Liu et al. 2020) without its graphs; published GSMN is the mean of the similarities of two models.

Example: --config gsmn:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common

LAMBDA = {'f30k': 20.0, 'coco': 10.0}
BATCH_SIZE = {'f30k': 64, 'coco': 32}
SCHEDULE = {
    'f30k': dict(epochs=30, learning_rate=2e-4, decay_epochs=15),
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=5),
}


@common.preset(common.CROSS_ATTENTION, SCHEDULE)
def get_config(loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    arguments = dict(lambda_softmax=LAMBDA[data], blocks=16)
    config = common.regions_and_words('gsmn.GSMN', data, loss, SCHEDULE[data], **arguments)
    config.batch_size = BATCH_SIZE[data]
    return config
