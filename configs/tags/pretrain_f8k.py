"""UNITER on Flickr8k grid features, tiny, from scratch: masked words, and matches told from mismatches of the batch."""

from ml_collections import ConfigDict

from configs.tags import pretrain_scenes


def use_f8k(config: ConfigDict) -> ConfigDict:
    """Gives a setting of the scenes the features of Flickr8k, its frequent words, and scene graphs by rules."""
    config.data = dict(source='precomp.load', root='data/f8k_precomp', dev_images=100)  # each pair takes its own pass
    config.vocabulary.min_count = 4
    config.scene_graphs.source = 'scene_graphs.rules'
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = use_f8k(pretrain_scenes.get_config())
    config.epochs, config.batch_size = 2, 8
    config.masking.num_views = 2
    return config
