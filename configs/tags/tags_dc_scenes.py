"""TAGS-DC on the synthetic scenes, tiny, stage 2, after TAGS (as paper 001)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    return correct(tags_scenes.get_config(), first='runs/tags_scenes', weight=0.1)
