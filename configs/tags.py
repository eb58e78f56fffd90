"""TAGS and TAGS-DC (Fan et al. 2022): UNITER with synthetic negative captions that it generates itself.

TAGS-DC, which discriminates and corrects words as well, is initialized from the run of TAGS with the same words.
The reduced variants (scenes, f8k) are tiny and initialized from their run of `uniter:pretrain`.

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
RELEASED = {  # epochs, batch size, learning rate, tau, m, lambda_ISTM, lambda_MLM; those not listed are as 'tags'
    ('tags', 'base', 'f30k'): (4, 128, 5e-5, 2.0, 31, 5e-4, 0.05),
    ('tags', 'base', 'coco'): (2, 256, 5e-5, 1.5, 31, 5e-5, 0.01),
    ('tags', 'large', 'f30k'): (9, 256, 5e-5, 2.0, 23, 1e-3, 0.05),
    ('tags', 'large', 'coco'): (2, 256, 4e-5, 1.5, 23, 1e-3, 0.05),
    ('tags_dc', 'base', 'f30k'): (9, 256, 1e-5, 1.5, 31, 5e-4, 0.1),
    ('tags_dc', 'base', 'coco'): (1, 256, 1e-5, 1.5, 31, 1e-4, 0.05),
    ('tags_dc', 'large', 'f30k'): (3, 256, 1e-5, 1.5, 23, 5e-4, 0.05),
    ('tags_dc', 'large', 'coco'): (2, 256, 1e-5, 1.5, 31, 1e-4, 0.05),
    ('tags_sg', 'base', 'f30k'): (4, 128, 5e-5, 2.0, 31, 1e-3, 0.1),  # both weights as in the paper
    ('tags_sg', 'base', 'coco'): (2, 256, 5e-5, 1.5, 31, 1e-3, 0.1),
    ('tags', 'base', 'scenes'): (1, 8, 3e-4, 1.5, 7, 1.0, 0.1),  # reduced, not released
    ('tags', 'base', 'f8k'): (1, 16, 3e-4, 1.5, 3, 1.0, 0.1),
}
WORD_WEIGHT = {'f30k': 5e-4, 'coco': 5e-4, 'scenes': 0.1, 'f8k': 0.1}  # lambda_WoD = lambda_WoC, of TAGS-DC
NUM_SAMPLES = {'f30k': 20, 'coco': 20, 'scenes': 4, 'f8k': 4}  # L

SETTINGS = {
    'tags,base,f30k': (('TAGS', 'f30k', 'TAGS-DC table 2'),),
    'tags,base,coco': (('TAGS', 'coco', 'TAGS-DC table 2'),),
    'tags_sg,base,f30k': (('TAGS w/ SG', 'f30k', 'TAGS-DC table 2'),),
    'tags_sg,base,coco': (('TAGS w/ SG', 'coco', 'TAGS-DC table 2'),),
    'tags_wm,base,f30k': (('TAGS w/ WM', 'f30k', 'TAGS-DC table 2'),),
    'tags_wm,base,coco': (('TAGS w/ WM', 'coco', 'TAGS-DC table 2'),),
    'tags_dc,base,f30k': (('TAGS-DC (base)', 'f30k', 'TAGS-DC table 1'),),
    'tags_dc,base,coco': (('TAGS-DC (base)', 'coco', 'TAGS-DC table 1'),),
    'tags_dc,large,f30k': (('TAGS-DC (large)', 'f30k', 'TAGS-DC table 1'),),
    'tags_dc,large,coco': (('TAGS-DC (large)', 'coco', 'TAGS-DC table 1'),),
    'tags,large,f30k': (),
    'tags,large,coco': (),
    'tags_dc_single,base,f30k': (),
    'tags_dc_single,base,coco': (),
    **{f'{system},scenes': () for system in SYSTEM},
    **{f'{system},f8k': () for system in ('tags', 'tags_dc', 'tags_dc_single')},
}


def get_config(setting: str = 'tags,base,f30k') -> ConfigDict:
    """Returns the config of a setting."""
    system, size, data = common.parse(setting, SYSTEM, uniter.SIZE, common.BOXES)
    config = uniter.get_config(f'uniter_mlm,{size},{data}')
    row = RELEASED.get((system, size, data), RELEASED['tags', size, data])
    config.epochs, config.batch_size, config.optimizer.learning_rate, temperature, num_hard, synthetic, masked = row
    config.candidates.num_extra = uniter.CANDIDATES[data][0] - config.batch_size
    config.candidates.num_hard = num_hard
    config.model.heads = ('itm', 'mlm')  # the weights of 'itm' initialize word discrimination in stage 2
    config.synthesis = dict(
        generator='target', num_samples=NUM_SAMPLES[data], temperature=temperature, num_hard=num_hard
    )
    hinges = common.mean_term('ranking.mean_of_hinges', weight=synthetic, margin=0.2)
    config.terms.masked.weight = masked
    config.terms = dict(config.terms.to_dict(), synthetic=dict(hinges, rankings=('generated',)))
    words = data if data in uniter.REDUCED else f'{size},{data}'  # of the run that a stage is initialized from
    if system == 'tags_sg':
        generator = dict(rule='frozen', init_from=common.run_of('uniter', f'uniter_mlm,{words}'))
        config.members = dict(config.members.to_dict(), generator=generator)
        config.synthesis.generator = 'generator'
    if system == 'tags_wm':
        config.scene_graphs.source = ''
    if system == 'tags_dc':
        config.members.target.init_from = common.run_of('tags', f'tags,{words}')
    if system in ('tags_dc', 'tags_dc_single'):
        _discriminate_and_correct(config, weight=WORD_WEIGHT[data])
    return config


def _discriminate_and_correct(config: ConfigDict, weight: float) -> None:
    """Adds word discrimination and word correction (section 2.4)."""
    config.model.heads = ('itm', 'mlm', 'discriminate', 'correct')
    config.terms = dict(
        config.terms.to_dict(),
        discrimination=common.mean_term('tokens.word_discrimination', weight=weight, match_weight=0.11),
        correction=common.mean_term('tokens.word_correction', weight=weight),
    )
