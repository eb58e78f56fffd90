"""TAGS-DC on Flickr8k grid features, tiny, stage 2, after TAGS (as paper 001)."""

from ml_collections import ConfigDict

from configs.tags import tags_f8k
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    return correct(tags_f8k.get_config(), first='runs/tags_f8k', weight=0.1)
