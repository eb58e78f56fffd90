"""TAGS and TAGS-DC (Fan et al. 2022): UNITER with synthetic negative captions that it generates itself.

TAGS-DC, which discriminates and corrects words as well, is initialized from the run of TAGS with the same words.

Example: --config tags:tags_dc,large,f30k
"""

from ml_collections import ConfigDict

from jitm.configs import common, uniter

SYSTEM = {
    'tags': 'stage 1',
    'tags_dc': 'stage 2',
    'tags_dc_single': 'TAGS-DC in one stage, as in algorithm 1',
    'tags_sg': 'table 2, w/ SG: the static generator is a fine-tuned UNITER + MLM',
    'tags_wm': 'table 2, w/ WM: single words are masked, not phrases',
}
# tau: temperature of generated words; m: number of hard negatives; istm, mlm: the weights lambda_ISTM and lambda_MLM.
RELEASED = {  # those not listed are as 'tags'
    ('tags', 'base', 'f30k'): dict(epochs=4, batch_size=128, rate=5e-5, tau=2.0, m=31, istm=5e-4, mlm=0.05),
    ('tags', 'base', 'coco'): dict(epochs=2, batch_size=256, rate=5e-5, tau=1.5, m=31, istm=5e-5, mlm=0.01),
    ('tags', 'large', 'f30k'): dict(epochs=9, batch_size=256, rate=5e-5, tau=2.0, m=23, istm=1e-3, mlm=0.05),
    ('tags', 'large', 'coco'): dict(epochs=2, batch_size=256, rate=4e-5, tau=1.5, m=23, istm=1e-3, mlm=0.05),
    ('tags_dc', 'base', 'f30k'): dict(epochs=9, batch_size=256, rate=1e-5, tau=1.5, m=31, istm=5e-4, mlm=0.1),
    ('tags_dc', 'base', 'coco'): dict(epochs=1, batch_size=256, rate=1e-5, tau=1.5, m=31, istm=1e-4, mlm=0.05),
    ('tags_dc', 'large', 'f30k'): dict(epochs=3, batch_size=256, rate=1e-5, tau=1.5, m=23, istm=5e-4, mlm=0.05),
    ('tags_dc', 'large', 'coco'): dict(epochs=2, batch_size=256, rate=1e-5, tau=1.5, m=31, istm=1e-4, mlm=0.05),
    # both weights as in the paper
    ('tags_sg', 'base', 'f30k'): dict(epochs=4, batch_size=128, rate=5e-5, tau=2.0, m=31, istm=1e-3, mlm=0.1),
    ('tags_sg', 'base', 'coco'): dict(epochs=2, batch_size=256, rate=5e-5, tau=1.5, m=31, istm=1e-3, mlm=0.1),
}
WORD_WEIGHT = 5e-4  # lambda_WoD = lambda_WoC in TAGS-DC


@common.preset(SYSTEM, uniter.SIZE, uniter.BOXES)
def get_config(system: str, size: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    released = RELEASED.get((system, size, data), RELEASED['tags', size, data])
    config = uniter.get_config(f'uniter_mlm,{size},{data}')
    config.epochs, config.batch_size = released['epochs'], released['batch_size']
    config.optimizer.learning_rate = released['rate']
    config.candidates.num_extra = uniter.NUM_CANDIDATES - config.batch_size
    config.candidates.num_hard = released['m']
    config.model.heads = ('itm', 'mlm')  # the weights of 'itm' initialize word discrimination in stage 2
    config.synthesis.update(generator='target', temperature=released['tau'], num_hard=released['m'])
    hinges = common.mean_term('ranking.mean_of_hinges', weight=released['istm'], margin=0.2)
    config.terms.masked.weight = released['mlm']
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
