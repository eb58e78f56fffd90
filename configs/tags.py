"""TAGS and TAGS-DC (Fan et al. 2022): UNITER with synthetic negative captions that it generates itself.

TAGS-DC, which discriminates and corrects words as well, is initialized from the run of TAGS with the same options.

Example: --config tags:tags_dc,large,f30k
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from jitm.configs import common, uniter

SYSTEM = ('tags', 'tags_dc', 'tags_dc_single', 'tags_sg', 'tags_wm')


class Released(NamedTuple):
    """A row of the hyper-parameters.

    Attributes:
      epochs: The number of epochs.
      batch_size: The number of pairs.
      rate: The learning rate.
      tau: The temperature of generated words.
      m: The number of hard negatives.
      istm: The weight lambda_ISTM.
      mlm: The weight lambda_MLM.
    """

    epochs: int
    batch_size: int
    rate: float
    tau: float
    m: int
    istm: float
    mlm: float


RELEASED = {  # those not listed are as 'tags'
    ('tags', 'base', 'f30k'): Released(4, 128, 5e-5, 2.0, 31, 5e-4, 0.05),
    ('tags', 'base', 'coco'): Released(2, 256, 5e-5, 1.5, 31, 5e-5, 0.01),
    ('tags', 'large', 'f30k'): Released(9, 256, 5e-5, 2.0, 23, 1e-3, 0.05),
    ('tags', 'large', 'coco'): Released(2, 256, 4e-5, 1.5, 23, 1e-3, 0.05),
    ('tags_dc', 'base', 'f30k'): Released(9, 256, 1e-5, 1.5, 31, 5e-4, 0.1),
    ('tags_dc', 'base', 'coco'): Released(1, 256, 1e-5, 1.5, 31, 1e-4, 0.05),
    ('tags_dc', 'large', 'f30k'): Released(3, 256, 1e-5, 1.5, 23, 5e-4, 0.05),
    ('tags_dc', 'large', 'coco'): Released(2, 256, 1e-5, 1.5, 31, 1e-4, 0.05),
    # both weights as in the paper
    ('tags_sg', 'base', 'f30k'): Released(4, 128, 5e-5, 2.0, 31, 1e-3, 0.1),
    ('tags_sg', 'base', 'coco'): Released(2, 256, 5e-5, 1.5, 31, 1e-3, 0.1),
}
WORD_WEIGHT = 5e-4  # lambda_WoD = lambda_WoC in TAGS-DC


@common.preset(SYSTEM, uniter.SIZE, uniter.BOXES)
def get_config(system: str, size: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    released = RELEASED.get((system, size, data), RELEASED['tags', size, data])
    config = uniter.get_config(f'uniter_mlm,{size},{data}')
    config.update(epochs=released.epochs, batch_size=released.batch_size)
    config.optimizer.learning_rate = released.rate
    config.candidates.num_extra = uniter.NUM_CANDIDATES - config.batch_size
    config.candidates.num_hard = released.m
    config.model.heads = ('itm', 'mlm')  # the weights of 'itm' initialize word discrimination in stage 2
    config.synthesis.update(generator='target', temperature=released.tau, num_hard=released.m)
    hinges = common.mean_term('ranking.mean_of_hinges', weight=released.istm, margin=0.2)
    config.terms.masked.weight = released.mlm
    config.terms.synthetic = dict(hinges, rankings=('generated',))
    if system == 'tags_sg':
        config.members.generator = dict(rule='frozen', init_from=common.run_of(f'uniter:uniter_mlm,{size},{data}'))
        config.synthesis.generator = 'generator'
    if system == 'tags_wm':
        config.scene_graphs.source = ''
    if system == 'tags_dc':
        config.members.target.init_from = common.run_of(f'tags:tags,{size},{data}')
    if system in ('tags_dc', 'tags_dc_single'):
        _discriminate_and_correct(config)
    return config


def _discriminate_and_correct(config: ConfigDict) -> None:
    """Adds word discrimination and word correction (section 2.4)."""
    config.model.heads = ('itm', 'mlm', 'discriminate', 'correct')
    discrimination = common.mean_term('tokens.word_discrimination', weight=WORD_WEIGHT, match_weight=0.11)
    config.terms.discrimination = discrimination
    config.terms.correction = common.mean_term('tokens.word_correction', weight=WORD_WEIGHT)
