"""VSE-infinity (GPO) with a bi-GRU on Flickr30K without its epoch of sum of hinges (paper 002, section IV-B)."""

from ml_collections import ConfigDict

from configs import vse_infty_bigru_f30k


def without_warm_up(config: ConfigDict) -> ConfigDict:
    """Trains with hard negatives from the first epoch on."""
    config.terms = dict(ranking=dict(config.terms.ranking.to_dict(), start_epoch=0))
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    return without_warm_up(vse_infty_bigru_f30k.get_config())
