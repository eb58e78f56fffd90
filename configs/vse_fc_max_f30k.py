"""VSE(FC) with hard negatives (HN) on Flickr30K (paper 004, tables 1 and 3): FC and bi-GRU, pooled by GPO."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.epochs = 20
    config.augmentation.drop_regions = 0.2
    config.augmentation.change_words = 0.2
    config.model.text.bidirectional = True
    config.model.image_pooling = 'gpo'
    config.model.text_pooling = 'gpo'
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.01  # PyTorch's default
    config.optimizer.decay_epochs = 20  # the ablations train at one rate
    return config
