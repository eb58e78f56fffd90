"""TAGS base on Flickr30K with a static generator, a fine-tuned UNITER + MLM (paper 001, table 2: w/ SG)."""

from ml_collections import ConfigDict

from configs.tags import tags_f30k


def write_with(config: ConfigDict, generator: str) -> ConfigDict:
    """Lets the model of another run, which stays as it is, write the sentences of a setting of TAGS."""
    config.members = dict(config.members.to_dict(), generator=dict(rule='frozen', init_from=generator))
    config.synthesis.generator = 'generator'
    return config


def get_config() -> ConfigDict:
    """Returns the config."""
    config = write_with(tags_f30k.get_config(), 'runs/uniter_mlm_f30k')
    config.terms.synthetic.weight, config.terms.masked.weight = 1e-3, 0.1  # the paper's, for this table
    return config
