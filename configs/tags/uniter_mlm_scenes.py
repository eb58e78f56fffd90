"""UNITER on the synthetic scenes, tiny, with hard negatives and masked phrases: for `tags_sg_scenes`."""

from ml_collections import ConfigDict

from configs.tags import uniter_scenes
from configs.tags.uniter_mlm_f30k import predict_masked


def get_config() -> ConfigDict:
    """Returns the config."""
    config = predict_masked(uniter_scenes.get_config(), weight=0.1)
    config.masking.num_views, config.scene_graphs.source = 8, 'scene_graphs.gold'
    return config
