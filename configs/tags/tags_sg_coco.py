"""TAGS base on COCO with a static generator, which stays as it begins (paper 001, table 2: w/ SG)."""

from ml_collections import ConfigDict

from configs.tags import tags_coco


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_coco.get_config()
    config.members = dict(config.members.to_dict(), generator=dict(rule='frozen', of='target'))
    config.synthesis.generator = 'generator'
    config.terms.synthetic.weight, config.terms.masked.weight = 1e-3, 0.1  # the paper's, for this table
    return config
