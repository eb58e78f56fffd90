"""SAF on Flickr30K (Diao et al., 2021)."""

from ml_collections import ConfigDict

from configs import sgr_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = sgr_f30k.get_config()
    config.epochs = 30
    config.model.reasoning = dict(name='alignment.AttentionFiltration')
    config.optimizer.decay_epochs = 20
    return config
