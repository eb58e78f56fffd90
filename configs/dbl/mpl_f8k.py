"""DBL's network with MPL instead of hard negatives, on Flickr8k, smaller (paper 002, table III: MPL)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = dbl_baseline_f8k.get_config()
    counts = dict(weight=1.0, start_epoch=0, end_epoch=None, reduction='mean')
    config.terms = dict(ranking=dict(loss='ranking.polynomial', margin=0.2, **counts))
    return config
