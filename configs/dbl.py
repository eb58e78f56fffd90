"""Deep boosting learning (DBL, Diao et al. 2024) on its own network and on others, and its baselines.

A target model learns from an anchor model; the losses are in section III, the scenarios in section III-C.

Example: --config dbl:sgr,am,oss,f30k --config.optimizer.learning_rate=1e-4
"""

from ml_collections import ConfigDict

from jitm.configs import common, load

NETWORK = {  # presets, but for the data
    'baseline': 'sgraf:sgr,',  # changed as in section IV-A: see _baseline
    'vsrn': 'vsrn:',
    'bfan': 'bfan:equal,',
    'sgr': 'sgraf:sgr,',
    'saf': 'sgraf:saf,',
    'naaf': 'naaf:',
    'esa': 'vse_infinity:esa,gru,',
    'gpo': 'vse_infinity:vse_infinity,gru,',  # without warm-up, as in section IV-B
    'vsepp': 'vsepp:vsepp,',  # section IV-C, with AM in OAS
    'scan': 'scan:t2i,avg,',  # not in the paper
    'clip': 'clip:softmax,',  # L/14@336px
}
HALVES = {'rs_as': ('rs', 'as'), 'rm_am': ('rm', 'am')}  # the mean of two losses: table IV, models H and I
ANCHORED = (
    *('rm', 'am', 'rs', 'as', 'soft_rm', 'soft_am', *HALVES),  # table IV
    *('dr', 'rkd', 'sp', 'dml', 'dino', 'inverse_dino'),  # table II
)
# The network's own loss (max), its replacements in table III, and SelHN, which is not in the paper.
ALONE = ('max', 'sum', 'cmpm', 'mpl', 'sam', 'selhn')
SCENARIO = ('oss', 'oss3', 'oss4', 'oas', 'mss', 'mutual', 'mutual4', 'alone')
COHORT = {'oss3': 3, 'oss4': 4, 'mutual4': 4}  # models, where they are not two (section IV-B)


@common.preset(NETWORK, (*ANCHORED, *ALONE), SCENARIO, common.DATA)
def get_config(network: str, loss: str, scenario: str, data: str) -> ConfigDict:
    """Returns the config of a preset.

    Raises:
      ValueError: If the loss needs an anchor and the scenario has none, or the other way round.
    """
    return train(make_network(network, data), network, loss, scenario, data)


def make_network(network: str, data: str) -> ConfigDict:
    """Returns the config of a network alone."""
    config = load(NETWORK[network] + data)
    if network == 'baseline':
        _baseline(config)
    if network == 'gpo':
        common.rank_with(config, common.LOSS['max'])
    return config


def train(
    config: ConfigDict, network: str, loss: str, scenario: str, data: str, momentum: float = 0.99995
) -> ConfigDict:
    """Trains the network of a config with a loss in a scenario; `momentum` is for MSS.

    Raises:
      ValueError: If the loss needs an anchor and the scenario has none, or the other way round.
    """
    if loss in ANCHORED and scenario == 'alone':
        raise ValueError(f"the loss '{loss}' needs an anchor: use another scenario than 'alone'")
    if loss in ALONE and scenario != 'alone':
        raise ValueError(f"the loss '{loss}' has no anchor: use the scenario 'alone', not '{scenario}'")
    if scenario == 'alone':
        _replace_loss(config, loss)
    else:
        boost(config, loss, scenario, common.run_of(f'dbl:{network},max,alone,{data}'), momentum)
    return config


def boost(config: ConfigDict, loss: str, scenario: str, run: str = '', momentum: float = 0.99995) -> None:
    """Makes the model of a config the target of an anchor: in OAS the run, in MSS an average with a momentum."""
    config.members = _members(scenario, config.members.target.init_from, run, momentum)
    if scenario == 'oas':  # the run has the weights
        config.initialize = dict.fromkeys(config.initialize, '')
    losses = [dict(common.LOSS[half], weight=0.5) for half in HALVES.get(loss, ())] or [common.LOSS[loss]]
    for loss in losses:
        config.terms[loss['loss'].rpartition('.')[2]] = common.schedule_of_ranking(config) | loss


def _baseline(config: ConfigDict) -> None:
    """Makes SGR the network of section IV-A: the mean of the alignments instead of graph reasoning."""
    config.model.image_whole = config.model.text_whole = None
    config.model.reasoning = dict(name='alignment.Mean')
    config.model.activation = 'tanh'


def _replace_loss(config: ConfigDict, loss: str) -> None:
    if loss == 'sam':  # besides the network's own
        config.terms.adaptive = common.term(common.LOSS['sam'])
        config.relevance = dict(source='cider.from_captions')
    elif loss != 'max':
        config.terms = dict(ranking=common.term(common.LOSS[loss]))
    if loss == 'cmpm':
        config.candidates.same_image = 'positive'


def _members(scenario: str, published: str, run: str, momentum: float) -> dict:
    """Returns the members; `published` are the weights of CLIP, or ''."""
    anchors = ('anchor', *(f'anchor_{n}' for n in range(2, COHORT.get(scenario, 2))))
    target = dict(rule='gradient', learn_from=anchors, init_from=run if scenario == 'oas' else published)
    if scenario == 'oas':
        members = dict(anchor=dict(rule='frozen', init_from=run))
    elif scenario == 'mss':
        members = dict(anchor=dict(rule='ema', of='target', momentum=momentum))
    else:
        shared = dict(rule='gradient', init_from=published)
        models = (*anchors, 'target')
        members = {}
        for n, name in enumerate(anchors):
            later = models[n + 1 :] if scenario.startswith('mutual') else ()  # OSS learns from earlier ones
            members[name] = dict(shared, learn_from=models[:n] + later)
    return dict(members, target=target)
