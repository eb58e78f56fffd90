"""TAGS-DC base on Flickr30K: TAGS that tells wrong words apart and corrects them, stage 2 (paper 001, as released)."""

from ml_collections import ConfigDict

from configs.tags import tags_f30k
from configs.tags.uniter_f30k import COUNTS


def correct(config: ConfigDict, *, first: str = '', weight: float = 5e-4) -> ConfigDict:
    """Adds word discrimination and word correction to a setting of TAGS (paper 001, section 2.4).

    Args:
      config: the setting.
      first: the run of stage 1 that it begins with; '' for one stage.
      weight: of both terms.
    """
    config.model.heads = ('itm', 'mlm', 'discriminate', 'correct')
    config.members.target.init_from = first
    config.terms = dict(
        config.terms.to_dict(),
        discrimination=dict(loss='tokens.word_discrimination', match_weight=0.11, weight=weight, **COUNTS),
        correction=dict(loss='tokens.word_correction', weight=weight, **COUNTS),
    )
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = tags_f30k.get_config()
    config.epochs, config.batch_size, config.candidates.num_extra = 9, 256, 144
    config.optimizer.learning_rate = 1e-5
    config.synthesis.temperature = 1.5
    config.terms.masked.weight = 0.1
    return correct(config, first='runs/tags_f30k')
