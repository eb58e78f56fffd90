"""NAAF on Flickr30K (Zhang et al., 2022): word vectors to begin with, and thresholds mined in training."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 20
    config.model = dict(
        name='naaf.NAAF',
        embed_dim=1024,
        image=config.model.image.to_dict(),
        text=config.model.text.to_dict(),
        slope=0.1,  # 0 is the paper's
        lambda_softmax=20.0,
        smoothing=True,  # in evaluation
        lambda_smoothing=5.0,
        alpha=2.0,
        minimum_words=200,
    )
    config.model.text.bidirectional = True
    config.initialize.word_vectors = 'data/glove.840B.300d.txt'
    config.optimizer.learning_rate = 5e-4
    config.optimizer.decay_epochs = 10
    return config
