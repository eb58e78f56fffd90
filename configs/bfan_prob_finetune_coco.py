"""BFAN (prob), Fine-tune, on COCO (paper 000, Table 3), after `bfan_prob_coco` and `vsrn_adapoffquin_coco`."""

from ml_collections import ConfigDict

from configs import bfan_prob_adapoffquin_coco


def get_config() -> ConfigDict:
    """Returns the config."""
    config = bfan_prob_adapoffquin_coco.get_config()
    config.stages = dict()
    config.members.target.init_from = 'runs/bfan_prob_coco'
    config.offline.path = 'runs/vsrn_adapoffquin_coco/candidates'
    return config
