"""A small VSE on the synthetic scenes: sum of hinges, then hard negatives; about a minute on two CPU cores."""

from ml_collections import ConfigDict

from jitm.configs import common, default


@common.preset()
def get_config() -> ConfigDict:
    """Returns the config of a preset."""
    config = default.get_config()
    config.update(batch_size=64, drop_last=True)
    config.data = common.SCENES
    config.model.embed_dim = 256
    config.model.text.word_dim = 128
    common.set_schedule(config, epochs=12, learning_rate=2e-3, decay_epochs=8)
    common.sum_first(config, epochs=6)
    return config
