"""TAGS on the synthetic scenes, tiny, with a static generator (as paper 001, table 2: w/ SG)."""

from ml_collections import ConfigDict

from configs.tags import tags_scenes


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_scenes.get_config()
    config.members = dict(config.members.to_dict(), generator=dict(rule='frozen', of='target'))
    config.synthesis.generator = 'generator'
    return config
