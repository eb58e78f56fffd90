"""NAAF (Zhang et al. 2022): GloVe word vectors, and thresholds mined during training.

Example: --config naaf:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

BATCH_SIZE = {'f30k': 128, 'coco': 256, 'f8k': 128}

SETTINGS = {
    'f30k': (('NAAF', 'f30k', 'README of NAAF'),),
    'coco': (('NAAF', 'coco', 'SelHN table 6'), ('NAAF', 'coco', 'SelHN table 11')),
    'f8k': (),
}


def get_config(setting: str = 'f30k') -> ConfigDict:
    """Returns the config of a setting."""
    (data,) = common.parse(setting, BATCH_SIZE)
    config = default.get_config()
    config.data = common.DATA[data]
    config.batch_size = BATCH_SIZE[data]
    config.model = dict(
        name='naaf.NAAF',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=dict(config.model.text.to_dict(), bidirectional=True),
        lambda_softmax=20.0,
        lambda_smoothing=5.0,
        alpha=2.0,
        minimum_words=200,
    )
    config.initialize.word_vectors = 'data/glove.840B.300d.txt'
    common.set_schedule(config, epochs=20, learning_rate=5e-4, decay_epochs=10)
    if data == 'f8k':  # without word vectors
        common.reduce_attention(config)
        common.sum_first(config, epochs=1)
    return config
