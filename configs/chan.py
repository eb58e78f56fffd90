"""CHAN (Pan et al. 2023): hard alignment of words with regions, trained as SCAN.

Example: --config chan:f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common


@common.preset(common.CROSS_ATTENTION, common.SCHEDULE)
def get_config(loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    return common.regions_and_words('chan.CHAN', data, loss, common.SCHEDULE[data])
