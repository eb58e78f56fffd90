"""RVSE(MLP) with the triplet loss over all negatives on Flickr30K (paper 004, table 1)."""

from ml_collections import ConfigDict

from configs import vse_fc_sum_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_sum_f30k.get_config()
    config.model.image.mlp = 'residual'
    config.model.image.norm_padding = True
    return config
