"""VSE0 on Flickr30K (paper 003, table 3): sum of hinges, image vectors not normalised."""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Returns the config."""
    config = default.get_config()
    config.terms.ranking.loss = 'ranking.sum_of_hinges'
    config.model.normalize_images = False
    return config
