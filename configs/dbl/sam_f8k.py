"""DBL's network with margins by CIDEr besides, on Flickr8k, smaller (paper 002, table III: SAM)."""

from ml_collections import ConfigDict

from configs import dbl_baseline_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = dbl_baseline_f8k.get_config()
    config.relevance = dict(source='cider.from_captions')
    counts = dict(weight=1.0, start_epoch=0, end_epoch=None, reduction='sum')
    config.terms = dict(config.terms.to_dict(), adaptive=dict(loss='ranking.adaptive_margin', **counts))
    return config
