"""NAAF (Zhang et al. 2022): GloVe word vectors, and thresholds mined during training.

Example: --config naaf:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common

BATCH_SIZE = {'f30k': 128, 'coco': 256}


@common.preset(BATCH_SIZE)
def get_config(data: str) -> ConfigDict:
    """Returns the config of a preset."""
    arguments = dict(lambda_softmax=20.0, lambda_smoothing=5.0, alpha=2.0, minimum_words=200)
    config = common.regions_and_words('naaf.NAAF', data, 'max', common.SCHEDULE['coco'], **arguments)
    config.batch_size = BATCH_SIZE[data]
    config.initialize.word_vectors = 'data/glove.840B.300d.txt'
    return config
