"""TAGS on the synthetic scenes, tiny, with a fine-tuned UNITER + MLM as static generator (paper 001, table 2)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes
from configs.tags.tags_sg_f30k import write_with


def get_config() -> ConfigDict:
    """Returns the config."""
    return write_with(tags_scenes.get_config(), 'runs/uniter_mlm_scenes')
