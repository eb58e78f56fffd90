"""BFAN (Liu et al. 2019); published BFAN is the mean of the similarities of an equal and a prob model.

Example: --config bfan:prob,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common

FOCAL = ('equal', 'prob')  # the two weightings of fragments in focal attention
SCHEDULE = {
    'f30k': dict(epochs=15, learning_rate=2e-4, decay_epochs=15),  # as in the released code: the rate never decays
    'coco': dict(epochs=20, learning_rate=5e-4, decay_epochs=15),
}


@common.preset(FOCAL, common.CROSS_ATTENTION, SCHEDULE)
def get_config(focal: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    return common.regions_and_words('bfan.BFAN', data, loss, SCHEDULE[data], focal=focal, lambda_softmax=20.0)
