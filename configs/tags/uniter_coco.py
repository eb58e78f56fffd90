"""UNITER base on COCO, fine-tuned with hard negatives (Chen et al., 2020; the baseline of paper 001)."""

from ml_collections import ConfigDict

from configs import default
from configs.tags.uniter_f30k import fine_tune


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.data.root = 'data/coco_boxes'
    config.epochs = 1
    return fine_tune(config)
