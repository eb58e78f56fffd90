"""Deep boosting learning (DBL, Diao et al. 2024) on its own network and on others, and what it is compared with.

A target model learns from an anchor model; the losses are those of section III, the scenarios those of section III-C.

Example: --config dbl:sgr,am,oss,f30k --config.optimizer.learning_rate=1e-4
"""

from ml_collections import ConfigDict

from jitm.configs import bfan, clip, common, naaf, scan, sgraf, vse_infinity, vsepp, vsrn

NETWORK = {  # the file and its words
    'baseline': (sgraf, 'sgr'),  # changed as in section IV-A: see _baseline
    'vsrn': (vsrn, ''),
    'bfan': (bfan, 'equal'),
    'sgr': (sgraf, 'sgr'),
    'saf': (sgraf, 'saf'),
    'naaf': (naaf, ''),
    'esa': (vse_infinity, 'esa,gru'),
    'gpo': (vse_infinity, 'vse_infinity,gru'),  # without warm-up, as in section IV-B
    'vsepp': (vsepp, 'vsepp'),  # not in the paper
    'scan': (scan, 't2i,avg'),  # not in the paper
    'clip': (clip, 'softmax'),  # of L/14@336px
}
LOSS = {
    # relative and absolute, over the hardest (max) or all negatives (sum): table IV, models B, C, F and G
    'rm': (dict(loss='anchored.relative_max', margin=0.2),),
    'am': (dict(loss='anchored.absolute_max', margin=0.2, alpha=0.5),),
    'rs': (dict(loss='anchored.relative_sum', margin=0.2),),
    'as': (dict(loss='anchored.absolute_sum', margin=0.2, alpha=0.5),),
    # with soft margins: models D and E
    'soft_rm': (dict(loss='anchored.relative_max', margin=0.2, extreme=2.0),),
    'soft_am': (dict(loss='anchored.absolute_max', margin=0.2, alpha=0.5, extreme=1.0),),
    # the mean of two: models H and I
    'rs_as': (
        dict(loss='anchored.relative_sum', margin=0.2, weight=0.5),
        dict(loss='anchored.absolute_sum', margin=0.2, alpha=0.5, weight=0.5),
    ),
    'rm_am': (
        dict(loss='anchored.relative_max', margin=0.2, weight=0.5),
        dict(loss='anchored.absolute_max', margin=0.2, alpha=0.5, weight=0.5),
    ),
    # distillation: table II, and SP of the released code
    'dr': (dict(loss='distillation.rank_distillation', reduction='mean', hard=True),),  # as released
    'rkd': (dict(loss='distillation.relational_distillation', weight=5.0, reduction='mean'),),
    'sp': (dict(loss='distillation.similarity_preserving', weight=10.0, reduction='mean'),),
    'dml': (dict(loss='distillation.mutual_learning', reduction='mean'),),
    'dino': (dict(loss='distillation.self_distillation', reduction='mean'),),
    'inverse_dino': (  # DINO*, as released
        dict(loss='distillation.self_distillation', reduction='mean', inverse=True, subtract_entropy=True),
    ),
}
LOSS_ALONE = {  # without an anchor: the network's own loss (max), and those that replace it in table III
    'max': {},
    'sum': dict(ranking=dict(loss='ranking.sum_of_hinges', margin=0.2, reduction='sum')),
    'cmpm': dict(ranking=dict(loss='ranking.projection_matching', temperature=0.1, reduction='mean')),
    'mpl': dict(ranking=dict(loss='ranking.polynomial', margin=0.2, reduction='mean')),
    'sam': dict(adaptive=dict(loss='ranking.adaptive_margin', reduction='sum')),  # besides the network's own
}
SCENARIO = {
    'oss': 'the anchor trains beside the target',
    'oss3': 'OSS with three models, each learning from those before it',
    'oas': 'the anchor is a trained run, from which the target is initialized, and stays fixed',
    'mss': 'the anchor is the moving average of the target',
    'mutual': 'both models learn from each other',
    'alone': 'no anchor',
}

# Tables II, III and IV and section IV-B, on Flickr30K.
PUBLISHED = {
    'max,alone': ('DBL baseline', 'DBL table II'),
    'sum,alone': ('DBL baseline with VSE0', 'DBL table III'),
    'cmpm,alone': ('DBL baseline with CMPM', 'DBL table III'),
    'mpl,alone': ('DBL baseline with MPL', 'DBL table III'),
    'sam,alone': ('DBL baseline with SAM', 'DBL table III'),
    'rm,oas': ('DBL baseline + RM (OAS)', 'DBL table II'),
    'am,oas': ('DBL baseline + AM (OAS)', 'DBL table II'),
    'dr,oas': ('DBL baseline + DR (OAS)', 'DBL table II'),
    'rkd,oas': ('DBL baseline + RKD (OAS)', 'DBL table II'),
    'rm,oss': ('DBL baseline + RM (OSS)', 'DBL table II'),
    'am,oss': ('DBL baseline + AM (OSS)', 'DBL table II'),
    'dml,mutual': ('DBL baseline + DML (OSS)', 'DBL table II'),
    'rm,mss': ('DBL baseline + RM (MSS)', 'DBL table II'),
    'am,mss': ('DBL baseline + AM (MSS)', 'DBL table II'),
    'dino,mss': ('DBL baseline + DINO (MSS)', 'DBL table II'),
    'inverse_dino,mss': ('DBL baseline + DINO* (MSS)', 'DBL table II'),
    'rs,oss': ('DBL baseline + RS (OSS)', 'DBL table IV'),
    'as,oss': ('DBL baseline + AS (OSS)', 'DBL table IV'),
    'soft_rm,oss': ('DBL baseline + RM, soft (OSS)', 'DBL table IV'),
    'soft_am,oss': ('DBL baseline + AM, soft (OSS)', 'DBL table IV'),
    'rs_as,oss': ('DBL baseline + model H (OSS)', 'DBL table IV'),
    'rm_am,oss': ('DBL baseline + model I (OSS)', 'DBL table IV'),
    'rm,oss3': ('DBL baseline + RM, 3 models (OSS)', 'DBL section IV-B'),
}
TABLE_I = {'vsrn': 'VSRN', 'bfan': 'BFAN', 'sgr': 'SGRAF', 'saf': 'SGRAF', 'naaf': 'NAAF', 'esa': 'ESA'}
SETTINGS = {
    **{f'baseline,{words},f30k': ((system, 'f30k', source),) for words, (system, source) in PUBLISHED.items()},
    'baseline,sp,oas,f30k': (),
    'baseline,max,alone,coco': (),
    **{
        f'{network},{loss},oss,{data}': ((f'{system} + {loss.upper()} (OSS)', data, 'DBL table I'),)
        for network, system in TABLE_I.items()
        for loss in ('rm', 'am')
        for data in ('f30k', 'coco')
    },
    **{
        f'clip,{loss},oas,{data}': ((f'CLIP + {loss.upper()} (OAS)', data, 'DBL table I', 'ViT-L/14@336px'),)
        for loss in ('rm', 'am')
        for data in ('f30k', 'coco')
    },
    'clip,max,alone,f30k': (),  # the anchors
    'clip,max,alone,coco': (),
    'gpo,max,alone,f30k': (('GPO', 'f30k', 'DBL section IV-B'),),
    'gpo,rm,oss,f30k': (('GPO + RM', 'f30k', 'DBL section IV-B'),),
    'gpo,am,oss,f30k': (('GPO + AM', 'f30k', 'DBL section IV-B'),),
    **{f'baseline,{words},f8k': () for words in (*PUBLISHED, 'sp,oas')},
    **{f'{network},{loss},oss,f8k': () for network in (*TABLE_I, 'gpo') for loss in ('rm', 'am')},
    **{f'scan,{loss},oss,f8k': () for loss in ('rm', 'am')},
    'gpo,max,alone,f8k': (),
    'clip,max,alone,f8k': (),
    **{f'clip,{loss},{scenario},f8k': () for loss in ('rm', 'am') for scenario in ('oas', 'oss', 'mss')},
    'vsepp,max,alone,f8k': (),
    **{f'vsepp,{loss},{scenario},f8k': () for loss in ('rm', 'am') for scenario in ('oas', 'oss', 'mss')},
    **{
        f'vsepp,{words},f8k': ()
        for words in ('rs,oss', 'as,oss', 'dr,oas', 'rkd,oas', 'dml,mutual', 'dino,mss', 'inverse_dino,mss')
    },
}


def get_config(setting: str = 'baseline,rm,oss,f30k') -> ConfigDict:
    """Returns the config of a setting.

    Raises:
      ValueError: if the loss needs an anchor and the scenario has none, or the other way round.
    """
    network, loss, scenario, data = common.parse(setting, NETWORK, (*LOSS, *LOSS_ALONE), SCENARIO, common.DATA)
    if loss in LOSS and scenario == 'alone':
        raise ValueError(f"the loss '{loss}' needs an anchor: take another scenario than 'alone'")
    if loss in LOSS_ALONE and scenario != 'alone':
        raise ValueError(f"the loss '{loss}' has no anchor: take the scenario 'alone', not '{scenario}'")
    module, words = NETWORK[network]
    config = module.get_config(f'{words},{data}'.strip(','))
    if network == 'baseline':
        _baseline(config)
    if network == 'gpo' and data != 'f8k':
        common.rank_with(config, common.LOSS['max'])
    if scenario == 'alone':
        _replace_loss(config, loss)
    else:
        if scenario == 'oas' and data == 'f8k' and network != 'clip':  # both are initialized from a trained model
            common.rank_with(config, common.LOSS['max'])
        boost(config, loss, scenario, data, run=common.run_of('dbl', f'{network},max,alone,{data}'))
    return config


def boost(config: ConfigDict, loss: str, scenario: str, data: str, run: str = '') -> None:
    """Makes the model of a config the target of an anchor; in OAS the anchor is `run`."""
    config.members = _members(scenario, config, run, data)
    _add_terms(config, LOSS[loss])


def _baseline(config: ConfigDict) -> None:
    """Makes SGR the network of section IV-A: the mean of the alignments instead of graph reasoning."""
    config.model.image_whole = None
    config.model.text_whole = None
    config.model.reasoning = dict(name='alignment.Mean')
    config.model.activation = 'tanh'


def _replace_loss(config: ConfigDict, loss: str) -> None:
    terms = {name: dict(term, weight=1.0, start_epoch=0, end_epoch=None) for name, term in LOSS_ALONE[loss].items()}
    if 'ranking' in terms:
        config.terms = terms
    else:
        config.terms = dict(config.terms.to_dict(), **terms)
    if loss == 'cmpm':
        config.candidates.same_image = 'positive'
    if loss == 'sam':
        config.relevance = dict(source='cider.from_captions')


def _members(scenario: str, config: ConfigDict, run: str, data: str) -> dict:
    anchors = ('anchor', 'anchor_2') if scenario == 'oss3' else ('anchor',)
    published = config.members.target.init_from  # of CLIP
    target = dict(rule='gradient', learn_from=anchors, init_from=run if scenario == 'oas' else published)
    if scenario == 'oas':
        members = dict(anchor=dict(rule='frozen', init_from=run))
    elif scenario == 'mss':  # on Flickr8k, the average moves as far in the whole run as in the published one
        momentum = round(1 - 0.0096 / config.epochs, 4) if data == 'f8k' else 0.99995
        members = dict(anchor=dict(rule='ema', of='target', momentum=momentum))
    elif scenario == 'mutual':
        members = dict(anchor=dict(rule='gradient', learn_from=('target',), init_from=published))
    else:
        shared = dict(rule='gradient', init_from=published)
        members = {name: dict(shared, learn_from=anchors[:n]) for n, name in enumerate(anchors)}
    return dict(members, target=target)


def _add_terms(config: ConfigDict, terms: tuple[dict, ...]) -> None:
    """Adds terms that are active and weighted as the ranking term is, each named by its loss."""
    ranking = config.terms.ranking
    schedule = {key: ranking[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')}
    named = {term['loss'].rpartition('.')[2]: {**schedule, **term} for term in terms}
    config.terms = dict(config.terms.to_dict(), **named)
