"""A small VSE on the synthetic scenes: sum of hinges first, then hard negatives; about a minute on two CPU cores."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 12
    config.batch_size = 64
    config.data = dict(source='scenes.load', seed=0, train_images=2000, dev_images=500, test_images=500)
    config.model.embed_dim = 256
    config.model.text.word_dim = 128
    hinges = config.terms.ranking.to_dict()
    config.terms = dict(
        warm_up=dict(hinges, loss='ranking.sum_of_hinges', end_epoch=6),
        ranking=dict(hinges, loss='ranking.max_of_hinges', start_epoch=6),
    )
    config.optimizer.learning_rate = 2e-3
    config.optimizer.decay_epochs = 8
    return config
