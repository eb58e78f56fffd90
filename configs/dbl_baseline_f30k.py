"""The network that DBL boosts, alone, on Flickr30K (paper 002, section IV-A)."""

from ml_collections import ConfigDict

from configs import sgr_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = sgr_f30k.get_config()
    config.model.image_whole = None
    config.model.text_whole = None
    config.model.reasoning = dict(name='alignment.Mean', normalize=True)  # as released; the paper does not normalise
    config.model.activation = 'tanh'
    return config
