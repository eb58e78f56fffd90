"""TAGS large on COCO, stage 1 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs import default
from configs.tags.tags_f30k import write
from configs.tags.uniter_f30k import fine_tune


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/coco_boxes'
    config.epochs, config.batch_size = 2, 256
    config = fine_tune(config, size='large', hardest=23, learning_rate=4e-5)
    return write(config, synthetic=1e-3, masked=0.05, temperature=1.5, hardest=23)
