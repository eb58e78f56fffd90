"""NAAF (Zhang et al. 2022): GloVe word vectors, and thresholds mined during training.

Example: --config naaf:coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

BATCH_SIZE = {'f30k': 128, 'coco': 256}


@common.preset(BATCH_SIZE)
def get_config(data: str) -> ConfigDict:
    """Returns the config of a preset."""
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
    return config
