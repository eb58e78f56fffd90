"""TAGS-DC base on COCO in one stage, as algorithm 1 of paper 001 has it; weights as released."""

from ml_collections import ConfigDict

from configs.tags import tags_coco
from configs.tags.tags_dc_f30k import correct


def get_config() -> ConfigDict:
    """Returns the config."""
    return correct(tags_coco.get_config())
