"""VSE(FC) with the selectively contrastive triplet loss (SCT) on Flickr30K (paper 004, table 3)."""

from ml_collections import ConfigDict

from configs import vse_fc_max_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_max_f30k.get_config()
    config.terms.ranking.loss = 'ranking.selective_contrastive'
    return config
