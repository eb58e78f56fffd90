"""TAGS-DC base on COCO, stage 2 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs.tags import tags_coco
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_coco.get_config()
    config.epochs = 1
    config.optimizer.learning_rate = 1e-5
    config.terms.synthetic.weight, config.terms.masked.weight = 1e-4, 0.05
    return correct(config, first='runs/tags_coco')
