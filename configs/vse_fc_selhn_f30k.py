"""VSE(FC) with selectively hard negatives (SelHN) on Flickr30K (paper 004, tables 1 and 3)."""

from ml_collections import ConfigDict

from configs import vse_fc_max_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_max_f30k.get_config()
    config.terms.ranking = dict(
        config.terms.ranking.to_dict(),
        loss='ranking.selective_hard_negative',
        epsilon=0.01,
        weight=0.5,  # the mean of both directions, as released; the paper writes their sum
        reduction='mean',
    )
    return config
