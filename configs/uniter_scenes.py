"""UNITER on the synthetic scenes: tiny, from scratch, with in-batch negatives; set vocabulary.path to a vocab.txt."""

from ml_collections import ConfigDict

from configs import uniter_f8k


def get_config() -> ConfigDict:
    """Returns the config."""
    config = uniter_f8k.get_config()
    config.data = dict(source='scenes.load', seed=0, train_images=2000, dev_images=100, test_images=100)
    return config
