"""TAGS-DC large on COCO, stage 2 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs.tags import tags_large_coco
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_large_coco.get_config()
    config.optimizer.learning_rate = 1e-5
    config.candidates.num_hard = config.synthesis.num_hard = 31
    config.terms.synthetic.weight = 1e-4
    return correct(config, first='runs/tags_large_coco')
