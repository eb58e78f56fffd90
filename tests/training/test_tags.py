"""Tiny runs of TAGS and TAGS-DC (Fan et al., 2022) on the scenes."""

import functools
import types

import jax
import numpy as np
import pytest

from jitm.data import scenes
from jitm.errors import UserError
from jitm.evaluation.discrimination.sets import perturbed_captions
from jitm.runs.log import read_metrics
from jitm.runs.run import load_run
from jitm.synthesis.trained import load_generator
from jitm.training import loop
from jitm.training import weights as weights_lib
from tests.support.runs import write_initial
from tests.support.steps import HARDEST, tiny_tags_dc
from tests.support.tags import MEAN


@pytest.fixture
def tags_dc(tiny_config):
    return tiny_tags_dc(tiny_config['data'])


@pytest.fixture
def stage_1(tags_dc):
    """TAGS, the first stage: synthetic captions without word terms."""
    terms = {name: tags_dc['terms'][name] for name in ('ranking', 'synthetic', 'masked')}
    return tags_dc | {'model': tags_dc['model'] | {'heads': ('itm', 'mlm')}, 'terms': terms}


@pytest.mark.slow
def test_the_second_stage_trains_and_generates(stage_1, tags_dc, tmp_path, monkeypatch):
    first = tmp_path / 'tags'
    write_initial(stage_1, first)
    tags_dc['members']['target']['init_from'] = str(first)
    setup = loop.set_up(tags_dc)
    initial = setup.initial_state().members['target'].params
    trained = load_run(first).variables['params']
    np.testing.assert_array_equal(initial['rank_head']['bias'], trained['rank_head']['bias'])
    np.testing.assert_array_equal(initial['correct_head']['dense']['kernel'], trained['mlm_head']['dense']['kernel'])
    np.testing.assert_array_equal(initial['discriminate_head']['kernel'], trained['itm_head']['kernel'])

    def load_without_itm(workdir):
        run = load_run(workdir)
        run.config['model']['heads'] = ('mlm',)
        del run.variables['params']['itm_head']
        return run

    with monkeypatch.context() as patch:
        patch.setattr(weights_lib, 'load_run', load_without_itm)
        initial = loop.set_up(tags_dc).initial_state().members['target'].params
    sampled = setup.random_state().members['target'].params
    np.testing.assert_array_equal(initial['rank_head']['kernel'], trained['rank_head']['kernel'])
    np.testing.assert_array_equal(initial['discriminate_head']['kernel'], sampled['discriminate_head']['kernel'])

    whole = tmp_path / 'whole'
    loop.train_and_evaluate(tags_dc, whole)
    line = next(line for line in read_metrics(whole) if line['part'] == 'train')
    assert {f'target/terms/{name}' for name in tags_dc['terms']} <= line.keys()
    assert 0 < line['target/generated/count'] <= 3

    assert load_generator(whole, 4).run.step == 4
    generator = load_generator(whole)
    dev = scenes.load('dev', **{key: value for key, value in tags_dc['data'].items() if key != 'source'})
    generated = perturbed_captions(dev, np.arange(20), ['generated'], generator=generator)['generated']
    assert 1 <= max(map(len, generated)) <= 3


MARGINS = {**MEAN, 'loss': 'ranking.adaptive_margin', 'rankings': ('generated',)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'synthesis.generator': 'x'}, "'synthesis.generator' is 'x', which is not a member"),
        ({'masking.num_views': 0}, "'masking.num_views' is 0, but config key 'synthesis' refills masked captions: set"),
        (
            {'synthesis.num_hard': 9},
            r"'synthesis.num_hard' is 9, more than the synthetic captions of an image \(.*8",
        ),
        ({'synthesis.generator': ''}, "'terms.correction' needs word_correction: set 'synthesis.generator', or leave"),
        ({'candidates.num_hard': 16}, "'candidates.num_hard' is 16, but a query has 15 candidates"),
        ({'candidates.num_extra': 33}, "'candidates.num_extra' is 33, but there are 32 texts for training outside"),
        ({'candidates.source': 'x'}, "'candidates.source' is 'x', but names of jitm.training.sources have the form"),
        ({'model.heads': ('mlm', 'correct')}, "but 'discriminate' is needed: add it"),
        ({'terms.synthetic': MARGINS}, "'terms.synthetic' needs relevance, which only rankings i2t and t2i have"),
        ({'terms.synthetic.rankings': 'generated'}, "'terms.synthetic.rankings' is .* a tuple of names"),
        ({'terms.synthetic.rankings': ()}, "'terms.synthetic.rankings' is .* a tuple of names"),
        ({'terms.synthetic.rankings': ('generatd',)}, "names 'generatd', which is not a ranking, did you mean 'gen"),
        (
            {'terms': {'ranking': HARDEST}, 'synthesis.generator': ''},
            "'masking.num_views' is set but unused: add a term of masked words, or set it to 0",
        ),
    ],
)
def test_conflicting_sections_are_refused(tags_dc, changes, message):
    for key, value in changes.items():
        *sections, last = key.split('.')
        functools.reduce(dict.__getitem__, sections, tags_dc)[last] = value
    if 'terms' in changes:
        tags_dc['candidates'] = {'source': 'in_batch', 'same_image': 'ignored'}
    with pytest.raises(UserError, match=message):
        loop.set_up(tags_dc)


@pytest.mark.slow
def test_word_terms_without_a_ranking_of_captions(tags_dc):
    del tags_dc['terms']['synthetic']
    loop.set_up(tags_dc)  # traces the step


@pytest.mark.slow
@pytest.mark.parametrize('copied', [False, True])
def test_frozen_generator_without_its_head_is_refused(stage_1, monkeypatch, copied):
    """The run of another member, or of the member it copies, lacks 'mlm', whose random words would fill captions."""
    stage_1['members']['generator'] = {'rule': 'frozen', **({'of': 'target'} if copied else {'init_from': 'run'})}
    stage_1['members']['target']['init_from'] = 'run' if copied else ''
    stage_1['synthesis']['generator'] = 'generator'
    setup = loop.set_up(stage_1, resuming=True)
    state = jax.eval_shape(setup.random_state)

    def load(*heads):
        trained = jax.tree.map(lambda x: np.zeros(x.shape), state.members['generator'].variables)
        trained['params'] = {k: v for k, v in trained['params'].items() if k not in {'mlm_head', 'itm_head'} - {*heads}}
        old = {'model': stage_1['model'] | {'heads': [head.removesuffix('_head') for head in heads]}}
        run = types.SimpleNamespace(vocabulary=setup.data.vocabulary, variables=trained, member='target')
        run.config = stage_1 | {'members': {'target': {}}} | old
        monkeypatch.setattr(weights_lib, 'load_run', lambda workdir: run)
        return weights_lib.load_weights(setup.plan, setup.members, state.members, setup.data.vocabulary)

    assert load('mlm_head').keys() == ({'target'} if copied else {'generator', 'target'})
    member = 'target' if copied else 'generator'
    with pytest.raises(UserError, match=f"does not train and .* 'mlm': set members.{member}.init_from to a run whose"):
        load('itm_head')
