"""VSRN on COCO (Li et al., 2019); published is the mean of the similarities of two such runs."""

from ml_collections import ConfigDict

from configs import vsrn_f30k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = vsrn_f30k.get_config()
    config.data.root = 'data/coco_precomp'
    config.model.normalize_before_graph = True
    config.model.batch_norm = False
    config.optimizer.decay_epochs = 15
    return config
