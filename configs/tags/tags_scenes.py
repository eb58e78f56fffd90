"""TAGS on the synthetic scenes, tiny: sentences refilled at phrases of the gold scene graphs (as paper 001)."""

from ml_collections import ConfigDict

from configs.tags import uniter_scenes
from configs.tags.tags_f30k import write


def get_config() -> ConfigDict:
    """Returns the config."""
    config = write(uniter_scenes.get_config(), synthetic=1.0, masked=0.1, temperature=1.5, hardest=7)
    config.masking.num_views, config.synthesis.num_samples = 8, 4
    config.scene_graphs.source = 'scene_graphs.gold'
    return config
