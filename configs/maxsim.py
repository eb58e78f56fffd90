"""MaxSim, as FILIP (Yao et al. 2022) and ColBERT (Khattab and Zaharia 2020) score, of regions and words.

Example: --config maxsim:both,f30k
The option `maxsim` of heads scores the patches and tokens of CLIP or SigLIP.
"""

from ml_collections import ConfigDict

from jitm.configs import common

DIRECTION = ('t2i', 'i2t', 'both')  # words find regions, regions find words, or the mean of both


@common.preset(DIRECTION, common.CROSS_ATTENTION, common.SCHEDULE)
def get_config(direction: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    return common.regions_and_words('maxsim.MaxSim', data, loss, common.SCHEDULE[data], direction=direction)
