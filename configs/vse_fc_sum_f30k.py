"""VSE(FC) with the triplet loss over all negatives on Flickr30K (paper 004, tables 1 and 3)."""

from ml_collections import ConfigDict

from configs import vse_fc_max_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_max_f30k.get_config()
    config.terms.ranking.loss = 'ranking.sum_of_hinges'
    return config
