"""TAGS large on Flickr30K, stage 1 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs import default
from configs.tags.tags_f30k import write
from configs.tags.uniter_f30k import fine_tune


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/f30k_boxes'
    config.epochs, config.batch_size = 9, 256
    config = fine_tune(config, size='large', hardest=23)
    return write(config, synthetic=1e-3, masked=0.05, temperature=2.0, hardest=23)
