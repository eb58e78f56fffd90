import runpy
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm import config as config_lib
from jitm.data.augmentation import Augmentation
from jitm.errors import UserError
from jitm.training.build.checks import check_anchors, check_source, check_words
from jitm.training.build.run import OFFLINE_INPUTS, make_source, make_synthesis
from jitm.training.generated import GENERATED
from jitm.training.members import make_members
from jitm.training.objective import DIRECTIONS, make_terms
from jitm.training.optimizer import make_optimizer
from jitm.types import TokenPredictions
from tests.conftest import ROOT

CONFIGS = sorted((ROOT / 'configs').rglob('*.py'))


def load(name):
    return runpy.run_path(str(ROOT / 'configs' / f'{name}.py'))['get_config']().to_dict()


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_its_models_terms_optimizer_and_members(path: Path):
    config = load(path.relative_to(ROOT / 'configs').with_suffix(''))
    assert config.keys() == load('default').keys()
    assert config['scene_graphs']['source'] != 'scene_graphs.gold' or config['data']['source'] == 'scenes.load'
    sections = {name: config_lib.member_model(config, name) for name in config['members']}
    models = {name: config_lib.make_model(section, vocab_size=10) for name, section in sections.items()}
    for model in models.values():
        read = 'word pieces' if config['vocabulary']['path'].endswith('.txt') else 'words'
        assert model.text_format.kind in (read, None)
    optimizer, _ = make_optimizer(config['optimizer'], 10, config['epochs'])
    members = make_members(config['members'], models, optimizer)
    supplied = {
        'margins': config['relevance']['source'],
        'anchor_scores': any(member.learn_from for member in members.values()),
        **dict.fromkeys(OFFLINE_INPUTS, config['stages'] or config['offline']['path']),
    }
    source, synthesis = make_source(config['candidates']), make_synthesis(config)
    ranked = (*DIRECTIONS, GENERATED) if synthesis else DIRECTIONS
    terms = make_terms(config['terms'], [name for name, given in supplied.items() if given], ranked)
    check_anchors(terms, members)
    check_words(terms, config, Augmentation(**config['augmentation']))
    check_source(source, config, num_texts=5000)


@pytest.mark.parametrize('path', [path for path in CONFIGS if path.stem.startswith('vsrn_adap')], ids=lambda p: p.stem)
def test_second_rounds_differ_from_the_setting_in_their_loss(path):
    config, setting = load(path.stem), load(path.stem.replace('_adapoffquin', ''))
    first, schedule = config['stages']['first'], config['optimizer']
    if not path.stem.endswith('f8k'):  # which keeps the schedule of the setting
        published = {'coco': (30, 15), 'f30k': (20, 10)}[path.stem.split('_')[-1]]
        assert (first['epochs'], first['optimizer']['decay_epochs']) == published
        assert (schedule['learning_rate'], config['epochs'], schedule['decay_epochs']) == (2e-4, 20, 10)
        first['epochs'] = config['epochs'] = setting['epochs']
        schedule['decay_epochs'] = setting['optimizer']['decay_epochs']
    assert first == setting
    assert (config['stages']['top_h_texts'], config['stages']['top_h_images']) == (300, 60)
    ranking = config['terms'].pop('ranking')
    old = setting['terms'].pop('ranking')
    assert ranking == {key: old[key] for key in ('weight', 'start_epoch', 'end_epoch', 'reduction')} | {
        'loss': 'offline.adaptive_offline_quintuplet',
        'online_margin': 0.2,
        'offline_margin': 0.0,
        'alpha': 0.3,
        'beta': 1.5,
    }
    assert config | {'stages': {}} == setting


PUBLISHED = {
    'vse0_f30k': ('ranking.sum_of_hinges', 0.2, 2e-4, 'cosine', False, False),
    'vsepp_f30k': ('ranking.max_of_hinges', 0.2, 2e-4, 'cosine', True, False),
    'vsepp_coco': ('ranking.max_of_hinges', 0.2, 2e-4, 'cosine', True, False),
    'order0_coco': ('ranking.sum_of_hinges', 0.05, 1e-3, 'order', True, True),
    'orderpp_coco': ('ranking.max_of_hinges', 0.2, 2e-4, 'order', True, False),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_settings(name):
    config = load(name)
    term, model, optimizer = config['terms']['ranking'], config['model'], config['optimizer']
    got = (term['loss'], term['margin'], optimizer['learning_rate'])
    got += (model['measure'], model['normalize_images'], model['absolute'])
    assert got == PUBLISHED[name]
    assert (config['epochs'], config['batch_size'], model['embed_dim'], model['text']['word_dim']) == (
        30,
        128,
        1024,
        300,
    )
    assert (optimizer['decay_epochs'], optimizer['decay_factor'], optimizer['clip_norm']) == (15, 0.1, 2.0)
    assert term['reduction'] == 'sum'


VSRN = {
    'vsrn_f30k': ('data/f30k_precomp', False, True, 10),
    'vsrn_coco': ('data/coco_precomp', True, False, 15),
}


@pytest.mark.parametrize('name', VSRN)
def test_published_settings_of_vsrn(name):
    config = load(name)
    terms, model, optimizer = config['terms'], config['model'], config['optimizer']
    got = (config['data']['root'], model['normalize_before_graph'], model['batch_norm'], optimizer['decay_epochs'])
    assert got == VSRN[name]
    assert (config['epochs'], config['batch_size'], config['evaluation']['every_steps']) == (30, 128, 500)
    assert (model['embed_dim'], model['word_dim'], model['graph_layers']) == (2048, 300, 4)
    assert (model['caption_dim'], model['caption_dropout'], model['caption_length']) == (512, 0.2, 60)
    assert (optimizer['learning_rate'], optimizer['decay_factor'], optimizer['clip_norm']) == (2e-4, 0.1, 2.0)
    ranking = {key: terms['ranking'][key] for key in ('loss', 'margin', 'weight', 'reduction')}
    assert ranking == {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'weight': 1.0, 'reduction': 'sum'}
    assert terms['caption'] == {
        'loss': 'tokens.captioning',
        'weight': 1.0,
        'start_epoch': 0,
        'end_epoch': None,
        'reduction': 'mean',
    }


@pytest.mark.parametrize(('name', 'batch_size'), [('naaf_f30k', 128), ('naaf_coco', 256)])
def test_published_settings_of_naaf(name, batch_size):
    config = load(name)
    model, optimizer = config['model'], config['optimizer']
    assert (config['epochs'], config['batch_size'], optimizer['decay_epochs']) == (20, batch_size, 10)
    assert (optimizer['learning_rate'], optimizer['weight_decay'], optimizer['clip_norm']) == (5e-4, 0, 2.0)
    assert (model['embed_dim'], model['text']['word_dim'], model['text']['bidirectional']) == (1024, 300, True)
    assert (model['slope'], model['lambda_softmax'], model['lambda_smoothing']) == (0.1, 20, 5)
    assert (model['smoothing'], model['alpha'], model['minimum_words']) == (True, 2, 200)
    assert config['data']['root'] == f'data/{name.removeprefix("naaf_")}_precomp'
    assert 'glove' in config['initialize']['word_vectors']
    term = config['terms']['ranking']
    assert (term['loss'], term['margin'], term['reduction']) == ('ranking.max_of_hinges', 0.2, 'sum')


# Paper 004, tables 1 and 3, and section A: the image side and the loss; the rest is common.
ABLATIONS = {
    'vse_fc_sum': ('none', 'sum_of_hinges'),
    'vse_fc_max': ('none', 'max_of_hinges'),
    'vse_fc_shn': ('none', 'semi_hard_hinge'),
    'vse_fc_sct': ('none', 'selective_contrastive'),
    'vse_fc_selhn': ('none', 'selective_hard_negative'),
    'vse_mlp_sum': ('plain', 'sum_of_hinges'),
    'vse_mlp_max': ('plain', 'max_of_hinges'),
    'vse_mlp_selhn': ('plain', 'selective_hard_negative'),
    'rvse_mlp_sum': ('residual', 'sum_of_hinges'),
    'rvse_mlp_max': ('residual', 'max_of_hinges'),
    'rvse_mlp_selhn': ('residual', 'selective_hard_negative'),
}


@pytest.mark.parametrize('name', ABLATIONS)
def test_settings_of_the_selhn_paper(name):
    config = load(f'{name}_f30k')
    term, model, optimizer = config['terms']['ranking'], config['model'], config['optimizer']
    assert (model['image']['mlp'], term['loss'].removeprefix('ranking.')) == ABLATIONS[name]
    assert term['margin'] == 0.2
    if name.endswith('selhn'):
        assert (term['epsilon'], term['weight'], term['reduction']) == (0.01, 0.5, 'mean')
    else:
        assert (term['weight'], term['reduction']) == (1.0, 'sum')
    assert (model['image_pooling'], model['text_pooling'], model['embed_dim']) == ('gpo', 'gpo', 1024)
    assert (model['text']['name'], model['text']['bidirectional']) == ('text.GRUEncoder', True)
    assert (config['epochs'], config['batch_size'], optimizer['learning_rate']) == (20, 128, 5e-4)
    assert optimizer['decay_epochs'] >= config['epochs']
    assert (optimizer['weight_decay'], optimizer['clip_norm']) == (0.01, 2.0)
    assert (config['augmentation']['drop_regions'], config['augmentation']['change_words']) == (0.2, 0.2)
    twin = load(f'{name}_f8k')
    assert (twin['epochs'], twin['model']['embed_dim']) == (8, 512)
    assert twin['terms'] == config['terms']
    assert twin['model']['image'] == model['image']


@pytest.mark.parametrize('data', ['f30k', 'coco'])
def test_settings_of_rvsepp_vse_infinity_and_esa(data):
    for name, mlp, epochs, pooling, copies in (
        ('rvsepp', 'residual', 30, 'gpo', 1),
        ('vse_infty', 'residual_on_input', 25, 'gpo', 1),
        ('vse_infty_bigru', 'residual_on_input', 25, 'gpo', 1),
        ('esa', 'residual_on_input', 25, 'esa', 2),
        ('esa_bigru', 'residual_on_input', 25, 'esa', 2),
    ):
        config = load(f'{name}_{data}')
        model, optimizer, bert = config['model'], config['optimizer'], not name.endswith('bigru')
        assert config['data']['root'] == f'data/{data}_precomp'
        assert (model['image']['mlp'], model['image']['norm_padding'], config['epochs']) == (mlp, True, epochs)
        assert (model['image_pooling'], model['text_pooling'], config['augmentation']['num_views']) == (
            pooling,
            pooling,
            copies,
        )
        assert (optimizer['learning_rate'], optimizer['decay_epochs']) == (5e-4, 15)
        assert optimizer['weight_decay'] == (1e-4 if bert else 0.01)
        assert optimizer['factors'] == ({'bert': 0.1} if bert else {})
        assert model['text']['name'] == ('text.BERTEncoder' if bert else 'text.GRUEncoder')
        assert config['augmentation']['keep_special_tokens'] == bert
        if name == 'rvsepp':
            assert config['terms']['ranking']['loss'] == 'ranking.selective_hard_negative'
        else:
            epochs_of_terms = {
                term['loss']: (term['start_epoch'], term['end_epoch']) for term in config['terms'].values()
            }
            assert epochs_of_terms == {'ranking.sum_of_hinges': (0, 1), 'ranking.max_of_hinges': (1, None)}


# classic.md, sections 3, 4, 7 and 12: epochs, rate and decay on Flickr30K and COCO, and what tells the models apart.
ATTENTION = {
    'scan_t2i_avg': ((30, 2e-4, 15), (20, 5e-4, 10), {'direction': 't2i', 'aggregation': 'Mean', 'lambda_softmax': 9}),
    'scan_t2i_lse': (
        (30, 2e-4, 15),
        (20, 5e-4, 10),
        {'aggregation': 'LogSumExp', 'lambda_softmax': 9, 'lambda_lse': 6},
    ),
    'scan_i2t_avg': ((30, 2e-4, 15), (20, 5e-4, 10), {'direction': 'i2t', 'aggregation': 'Mean', 'lambda_softmax': 4}),
    'scan_i2t_lse': ((30, 2e-4, 15), (20, 5e-4, 10), {'aggregation': 'LogSumExp', 'lambda_softmax': 4}),
    'bfan_equal': ((15, 2e-4, 15), (20, 5e-4, 15), {'focal': 'equal', 'lambda_softmax': 20}),
    'bfan_prob': ((15, 2e-4, 15), (20, 5e-4, 15), {'focal': 'prob', 'lambda_softmax': 20}),
    'sgr': ((40, 2e-4, 30), (20, 2e-4, 10), {'activation': 'sigmoid', 'alignment_dim': 256, 'lambda_softmax': 9}),
    'saf': ((30, 2e-4, 20), (20, 2e-4, 10), {'activation': 'sigmoid', 'alignment_dim': 256, 'lambda_softmax': 9}),
    'dbl_baseline': ((40, 2e-4, 30), (20, 2e-4, 10), {'activation': 'tanh', 'image_whole': None, 'lambda_softmax': 9}),
}


@pytest.mark.parametrize('name', ATTENTION)
def test_settings_of_cross_attention(name):
    f30k, coco, options = ATTENTION[name]
    for data, (epochs, rate, decay) in (('f30k', f30k), ('coco', coco)):
        config = load(f'{name}_{data}')
        model, optimizer, term = config['model'], config['optimizer'], config['terms']['ranking']
        assert (config['epochs'], optimizer['learning_rate'], optimizer['decay_epochs']) == (epochs, rate, decay)
        assert (config['batch_size'], optimizer['clip_norm'], optimizer['weight_decay']) == (128, 2.0, 0.0)
        assert (term['loss'], term['margin'], term['reduction']) == ('ranking.max_of_hinges', 0.2, 'sum')
        assert (model['embed_dim'], model['text']['word_dim'], model['text']['bidirectional']) == (1024, 300, True)
        assert model['text']['dropout'] == (0.4 if model['name'] == 'sgraf.SGRAF' else 0.0)
        assert (model['raw_feature_norm'], model['slope']) == ('clipped_l2norm', 0.1)
        assert options.items() <= model.items()
        assert config['data']['root'] == f'data/{data}_precomp'
    if not name.endswith('_lse'):
        twin = load(f'{name}_f8k')
        assert (twin['data']['root'], twin['model']['embed_dim']) == ('data/f8k_precomp', 256)
        assert {key: twin['model'][key] for key in ('name', 'lambda_softmax')} == {
            key: model[key] for key in ('name', 'lambda_softmax')
        }
    assert load('scan_i2t_lse_f30k')['model']['lambda_lse'] == 5
    assert load('scan_i2t_lse_coco')['model']['lambda_lse'] == 20


@pytest.mark.parametrize('path', sorted((ROOT / 'configs/tags').glob('*.py')), ids=lambda path: path.stem)
def test_settings_of_tags_begin_with_runs_of_settings(path):
    runs = [member.get('init_from') for member in load(f'tags/{path.stem}')['members'].values()]
    assert all((ROOT / 'configs/tags' / f'{Path(run).name}.py').exists() for run in runs if run)


RELEASED_TAGS = {  # learning rate, tau, m, lambda_ISTM, lambda_MLM, lambda_WoD and lambda_WoC, positives, steps
    'tags_f30k': (5e-5, 2.0, 31, 5e-4, 0.05, None, 128, 5000),
    'tags_large_f30k': (5e-5, 2.0, 23, 1e-3, 0.05, None, 256, 5000),
    'tags_coco': (5e-5, 1.5, 31, 5e-5, 0.01, None, 256, 5000),
    'tags_large_coco': (4e-5, 1.5, 23, 1e-3, 0.05, None, 256, 5000),
    'tags_dc_f30k': (1e-5, 1.5, 31, 5e-4, 0.1, 5e-4, 256, 5000),
    'tags_dc_large_f30k': (1e-5, 1.5, 23, 5e-4, 0.05, 5e-4, 256, 1500),
    'tags_dc_coco': (1e-5, 1.5, 31, 1e-4, 0.05, 5e-4, 256, 1500),
    'tags_dc_large_coco': (1e-5, 1.5, 31, 1e-4, 0.05, 5e-4, 256, 5000),
}


@pytest.mark.parametrize(('name', 'released'), RELEASED_TAGS.items())
def test_settings_of_tags_are_those_released(name, released):
    config = load(f'tags/{name}')
    synthesis, terms, optimizer = config['synthesis'], config['terms'], config['optimizer']
    words = {terms[term]['weight'] for term in ('discrimination', 'correction') if term in terms} or {None}
    rate, tau, m, synthetic, masked, weight, positives, steps = released
    assert (optimizer['learning_rate'], synthesis['temperature']) == (rate, tau)
    assert (synthesis['num_hard'], config['candidates']['num_hard']) == (m, m)
    assert (terms['synthetic']['weight'], terms['masked']['weight'], words) == (synthetic, masked, {weight})
    assert (config['masking']['num_views'], synthesis['num_samples']) == (20, 20)
    assert (config['batch_size'], config['candidates']['num_extra'] + positives) == (positives, 400)
    texts = 29_000 * 5 if name.endswith('f30k') else 113_287 * 5
    assert config['epochs'] == max(1, round(steps / (texts // positives)))
    assert {terms[term]['margin'] for term in ('ranking', 'synthetic')} == {0.2}
    assert (optimizer['weight_decay'], optimizer['clip_norm'], config['model']['dropout']) == (0.01, 2.0, 0.1)
    assert config['members']['target']['init_from'] == ('runs/' + name.replace('_dc', '') if weight else '')


def test_defaults_are_locked_and_name_the_nearest_key():
    config = runpy.run_path(str(ROOT / 'configs' / 'default.py'))['get_config']()
    with pytest.raises(AttributeError, match='Did you mean "batch_size"'):
        config.batchsize = 3
    with pytest.raises(AttributeError, match='Did you mean "learning_rate"'):
        config.optimizer.lerning_rate = 3


def test_a_module_that_needs_what_is_not_installed_says_so(tmp_path, monkeypatch):
    (tmp_path / 'needy.py').write_text('import absent_package\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match='absent_package'):
        config_lib.resolve('needy', 'loss')


@pytest.mark.parametrize(
    ('package', 'name', 'message'),
    [
        ('jitm.losses', 'ranking.max_of_hinge', "has no 'max_of_hinge', did you mean 'max_of_hinges'"),
        ('jitm.losses', 'rankin.max_of_hinges', 'no module jitm.losses.rankin'),
        ('jitm.losses', 'ranking.jnp', "has no 'jnp'"),
        ('jitm.models', 'VSE', "jitm.models has no 'VSE'"),
    ],
)
def test_names_that_lead_nowhere_are_refused(package, name, message):
    with pytest.raises(UserError, match=message):
        config_lib.resolve(package, name)


def term(**changes):
    keywords = {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}
    keywords |= {'reduction': 'sum'} | changes
    return {'ranking': {key: value for key, value in keywords.items() if value != 'absent'}}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'margn': 1}, "'terms.ranking.margn' is unknown, did you mean 'margin'"),
        ({'margin': 'absent'}, "'terms.ranking.margin' is missing"),
        ({'loss': 'absent'}, "'terms.ranking.loss' is missing"),
        ({'weight': 'absent'}, "'terms.ranking.weight' is missing"),
        (
            {'start_epoch': 2, 'end_epoch': 2},
            "'terms.ranking' is never active: start_epoch 2 is not before end_epoch 2",
        ),
        ({'reduction': 'max'}, "'terms.ranking.reduction' is 'max'; take 'sum' or 'mean'"),
        ({'loss': 'tokens.captionin'}, "has no 'captionin', did you mean 'captioning'"),
        ({'loss': 'tokens.captioning'}, "'terms.ranking.margin' is unknown$"),
        ({'predictions': 'captioning'}, "'terms.ranking.predictions' is unknown"),
    ],
)
def test_terms_that_cannot_be_built_name_their_key(changes, message):
    with pytest.raises(UserError, match=message):
        make_terms(term(**changes))


def test_a_loss_that_needs_an_anchor_says_what_to_add(monkeypatch):
    from jitm.losses import ranking

    def relative(scores, positives, negatives, *, anchor_scores):
        return scores

    relative.__module__ = ranking.__name__
    monkeypatch.setattr(ranking, 'relative', relative, raising=False)
    with pytest.raises(UserError, match='needs anchor_scores: add an anchor member'):
        make_terms(term(loss='ranking.relative', margin='absent'))


def test_a_loss_that_needs_margins_says_what_to_add():
    with pytest.raises(UserError, match=r"'terms.ranking' needs margins: set relevance.source, such as 'cider.from_c"):
        make_terms(term(loss='ranking.adaptive_margin', margin='absent'))
    make_terms(term(loss='ranking.adaptive_margin', margin='absent'), supplied=('margins',))
    make_terms(term(), supplied=('margins',))


def test_what_a_ranking_supplies_cannot_be_configured():
    with pytest.raises(UserError, match=r"'terms.ranking.margins' is unknown"):
        make_terms(term(loss='ranking.adaptive_margin', margin='absent', margins=0.2), supplied=('margins',))


def test_arguments_that_a_loss_refuses_are_refused_before_it_is_computed():
    boost = term(loss='distillation.rank_distillation', margin='absent', length=7)
    with pytest.raises(UserError, match=r"'terms.ranking' cannot be computed with its arguments: length is 7; take 1"):
        make_terms(boost, supplied=('anchor_scores',))
    with pytest.raises(UserError, match=r"'terms.ranking' cannot be computed with its arguments"):
        make_terms(term(margin='wide'))
    with pytest.raises(UserError, match=r'arguments: extreme is 0; it must be above 0'):
        make_terms(term(loss='anchored.relative_max', extreme=0), supplied=('anchor_scores',))


def test_arguments_of_a_token_term_are_checked_and_reach_its_loss():
    def words(**changes):
        return term(**{'loss': 'tokens.word_discrimination', 'margin': 'absent', 'match_weight': 0.11} | changes)

    predictions = TokenPredictions(jnp.zeros((1, 2, 2)), jnp.asarray([[0, 1]]), jnp.ones((1, 2), bool))
    made = make_terms(words())['ranking']
    got = made.per_text({'word_discrimination': predictions})
    np.testing.assert_allclose(got, 1.11 * np.log(2) / 2, rtol=1e-6)
    for changes, message in (
        ({'match_weight': 'absent'}, "'terms.ranking.match_weight' is missing"),
        (
            {'match_weight': -1},
            "'terms.ranking' cannot be computed with its arguments: match_weight is -1; it must not",
        ),
        ({'match_weight': 'low'}, "'terms.ranking' cannot be computed with its arguments: "),
        ({'mach_weight': 1}, "'terms.ranking.mach_weight' is unknown, did you mean 'match_weight'"),
        ({'mask': None}, "'terms.ranking.mask' is unknown"),
        ({'loss': 'tokens.word_correction'}, "'terms.ranking.match_weight' is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            make_terms(words(**changes))


def test_without_a_source_there_is_no_relevance():
    assert config_lib.load_relevance({'source': ''}, None) is None
    with pytest.raises(UserError, match=r"'relevance.path' is unknown"):
        config_lib.load_relevance({'source': '', 'path': 'cider.npy'}, None)


def members(**configs):
    return make_members(configs, dict.fromkeys(configs), optax.identity())


def test_members_that_cannot_be_built_are_refused():
    with pytest.raises(UserError, match=r"'members.a.momentum' is unknown"):
        members(a={'momentum': 0.9})
    with pytest.raises(UserError, match=r"'members.a.rule' is unknown; take one of gradient, frozen, ema"):
        members(a={'rule': 'gradent'})
    with pytest.raises(UserError, match=r"'members.a' is 'gradient'; give a dict"):
        config_lib.member_model({'members': {'a': 'gradient', 'b': {}}}, 'b')
    with pytest.raises(UserError, match=r"'members.b.learn_from' is \('a', 'a'\); give a tuple of names, each once"):
        members(a={}, b={'learn_from': ('a', 'a')})
    for momentum in (1.5, -0.1, '0.9'):
        with pytest.raises(UserError, match=r"'members.b.momentum' is .*; it must be in \[0, 1\]"):
            members(a={}, b={'rule': 'ema', 'of': 'a', 'momentum': momentum})
    with pytest.raises(UserError, match=r"'members.b.learn_from' names 'aa', which is no other member, did you mean"):
        members(a={}, b={'learn_from': ('aa',)})
    with pytest.raises(UserError, match=r"'members.a.learn_from' names 'a', which is no other member"):
        members(a={'learn_from': ('a',)})
    with pytest.raises(UserError, match=r"'members.b.learn_from' is 'a'; give a tuple of names"):
        members(a={}, b={'learn_from': 'a'})
    with pytest.raises(UserError, match=r"'members.b.init_from' is missing; give the run directory"):
        members(a={}, b={'rule': 'frozen'})
    with pytest.raises(UserError, match=r"'members' has no member with rule 'gradient'; one must train"):
        members(a={'rule': 'frozen', 'init_from': 'run'})
    with pytest.raises(UserError, match=r"'members.b.learn_from' must be empty: it does not train"):
        members(a={}, b={'rule': 'frozen', 'init_from': 'run', 'learn_from': ('a',)})
    with pytest.raises(UserError, match=r"'members.b.of' is missing"):
        members(a={}, b={'rule': 'ema', 'momentum': 0.9})
    with pytest.raises(UserError, match=r"'members.b.of' names 'x', which is no other member"):
        members(a={}, b={'rule': 'ema', 'momentum': 0.9, 'of': 'x'})
    with pytest.raises(UserError, match=r"'members.c.of' names 'b', which does not train"):
        members(a={}, b={'rule': 'frozen', 'init_from': 'run'}, c={'rule': 'ema', 'momentum': 0.9, 'of': 'b'})
    with pytest.raises(UserError, match=r"'members.b' must have no model and no init_from: it begins as a copy of 'a'"):
        members(a={}, b={'rule': 'ema', 'momentum': 0.9, 'of': 'a', 'init_from': 'run'})


def test_differences_are_those_that_change_numbers():
    old, new = load('default'), load('default')
    new['run']['log_every'] = 1
    new['data']['root'] = 'elsewhere'
    assert config_lib.differences(old, new) == []
    new['optimizer']['learning_rate'] = 1.0
    new['data']['dev_images'] = 500
    new['members']['other'] = {}
    del new['model']['measure']
    assert config_lib.differences(old, new) == [
        'data.dev_images: 1000 -> 500',
        'members.other: absent -> {}',
        'model.measure: cosine -> absent',
        'optimizer.learning_rate: 0.0002 -> 1.0',
    ]


def test_a_run_needs_a_term_and_a_member():
    with pytest.raises(UserError, match="'terms' is empty"):
        make_terms({})
    with pytest.raises(UserError, match="'members' has no member with rule 'gradient'"):
        members()
