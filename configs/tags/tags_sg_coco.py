"""TAGS base on COCO with a static generator, a fine-tuned UNITER + MLM (paper 001, table 2: w/ SG)."""

from ml_collections import ConfigDict

from configs.tags import tags_coco
from configs.tags.tags_sg_f30k import write_with


def get_config() -> ConfigDict:
    """Returns the config."""
    config = write_with(tags_coco.get_config(), 'runs/uniter_mlm_coco')
    config.terms.synthetic.weight, config.terms.masked.weight = 1e-3, 0.1  # the paper's, for this table
    return config
