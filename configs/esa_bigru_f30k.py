"""ESA with a bi-GRU on Flickr30K: element-wise attention, and self-expanding (two changed copies of each pair)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_infty_bigru_f30k.get_config()
    config.augmentation.num_views = 2
    config.initialize.word_vectors = 'data/glove.840B.300d.txt'
    config.model.text.dropout = 0.1
    config.model.image_pooling = 'esa'
    config.model.text_pooling = 'esa'
    return config
