"""UNITER base on COCO, fine-tuned with hard negatives and masked phrases: a static generator (paper 001, 3.2)."""

from ml_collections import ConfigDict

from configs.tags import uniter_coco
from configs.tags.uniter_mlm_f30k import predict_masked


def get_config() -> ConfigDict:
    """Returns the config."""
    return predict_masked(uniter_coco.get_config(), weight=0.1)
