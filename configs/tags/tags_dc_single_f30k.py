"""TAGS-DC base on Flickr30K in one stage, as algorithm 1 of paper 001 has it; weights as released."""

from ml_collections import ConfigDict

from configs.tags import tags_f30k
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    return correct(tags_f30k.get_config())
