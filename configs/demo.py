"""VSE++ with mean pooling on the synthetic scenes: a minute on two CPU cores, no download."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 12
    config.batch_size = 64
    config.data = dict(source='scenes.load', seed=0, train_images=2000, dev_images=500, test_images=500)
    config.model.embed_dim = 256
    config.model.word_dim = 128
    config.optimizer.learning_rate = 2e-3
    config.optimizer.decay_epochs = 8
    return config
