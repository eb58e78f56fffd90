"""TAGS base on COCO, stage 1 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs import default
from configs.tags.tags_f30k import write
from configs.tags.uniter_f30k import fine_tune


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/coco_boxes'
    config.epochs, config.batch_size = 2, 256
    return write(fine_tune(config), synthetic=5e-5, masked=0.01, temperature=1.5)
