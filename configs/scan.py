"""SCAN (Lee et al. 2018); published SCAN is the mean of the similarities of a t2i and an i2t model.

Example: --config scan:i2t,lse,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common

DIRECTION = {  # lambda 1, the inverse temperature of the attention
    't2i': 9.0,  # words attend to regions
    'i2t': 4.0,  # regions attend to words
}
AGGREGATION = {'avg': 'Mean', 'lse': 'LogSumExp'}  # aggregates the relevance of words or regions
LAMBDA_LSE = {('i2t', 'coco'): 20.0, ('i2t', 'f30k'): 5.0}  # lambda 2 of LSE; 6.0 for t2i


@common.preset(DIRECTION, AGGREGATION, common.CROSS_ATTENTION, common.SCHEDULE)
def get_config(direction: str, aggregation: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    arguments = dict(
        direction=direction,
        lambda_softmax=DIRECTION[direction],
        aggregation=AGGREGATION[aggregation],
        lambda_lse=LAMBDA_LSE.get((direction, data), 6.0) if aggregation == 'lse' else 6.0,  # no effect on 'Mean'
    )
    return common.regions_and_words('scan.SCAN', data, loss, common.SCHEDULE[data], **arguments)
