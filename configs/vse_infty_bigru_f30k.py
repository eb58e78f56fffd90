"""VSE-infinity with a bi-GRU on Flickr30K (Chen et al., 2021; regions): an epoch of sum of hinges first."""

from ml_collections import ConfigDict

from configs import vse_fc_max_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vse_fc_max_f30k.get_config()
    config.epochs = 25
    config.model.image.mlp = 'residual_on_input'
    config.model.image.norm_padding = True
    hinges = config.terms.ranking.to_dict()
    config.terms = dict(
        warm_up=dict(hinges, loss='ranking.sum_of_hinges', end_epoch=1),
        ranking=dict(hinges, loss='ranking.max_of_hinges', start_epoch=1),
    )
    config.optimizer.decay_epochs = 15
    return config
