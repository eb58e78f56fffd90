"""Whole runs of TAGS and TAGS-DC, tiny, on the scenes."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.text import tokenize
from jitm.errors import UserError
from jitm.evaluation.discrimination.report import false_sentences
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import load_run
from jitm.synthesis.trained import load_writer
from jitm.training import loop
from jitm.training.build import weights
from jitm.training.logs import read_metrics
from tests.conftest import ROOT
from tests.test_train import assert_same_run


@pytest.fixture
def tags_dc(tiny_config):
    """One stage, by the members' own words: 5 steps of 8 pairs, each with 8 sentences of which 3 are kept."""
    scope = {}
    exec((ROOT / 'configs/tags/tags_dc_single_scenes.py').read_text(), scope)
    config = scope['get_config']().to_dict()
    config['data'] = tiny_config['data'] | {'train_images': 8}
    config['epochs'], config['length_multiple'] = 1, 24
    config['candidates'] |= {'num_extra': 8, 'num_hard': 3}
    config['masking']['num_views'], config['synthesis'] = 2, config['synthesis'] | {'num_samples': 4, 'num_hard': 3}
    config['members']['target']['init_from'] = ''
    config['run'] |= {'log_every': 2, 'checkpoint_every': 2}
    return config


@pytest.fixture
def stage_1(tags_dc):
    """TAGS, to begin with: sentences without terms of their words."""
    terms = {name: tags_dc['terms'][name] for name in ('ranking', 'synthetic', 'masked')}
    return tags_dc | {'model': tags_dc['model'] | {'heads': ('itm', 'mlm')}, 'terms': terms}


@pytest.mark.slow
def test_two_stages_train_and_the_second_goes_on_after_a_stop(stage_1, tags_dc, tmp_path, monkeypatch):
    first = tmp_path / 'tags'
    loop.train_and_evaluate(stage_1, first)
    tags_dc['members']['target']['init_from'] = str(first)
    setup = loop.set_up(tags_dc)
    began, trained = setup.initial_state().members['target'].params, load_run(first).variables['params']
    for new, old in (('rank_head', 'rank_head'), ('correct_head', 'mlm_head')):
        np.testing.assert_array_equal(began[new]['bias'], trained[old]['bias'])
    np.testing.assert_array_equal(began['correct_head']['dense']['kernel'], trained['mlm_head']['dense']['kernel'])
    np.testing.assert_array_equal(began['discriminate_head']['kernel'], trained['itm_head']['kernel'])

    def load_without_itm(workdir):
        run = load_run(workdir)
        model = run.config['model'] | {'heads': ('mlm',)}
        params = {name: values for name, values in run.variables['params'].items() if name != 'itm_head'}
        config = run.config | {'model': model}
        return dataclasses.replace(run, config=config, variables=run.variables | {'params': params})

    with monkeypatch.context() as patch:
        patch.setattr(weights, 'load_run', load_without_itm)
        began, drawn = (s.members['target'].params for s in (setup.initial_state(), setup.draw_state()))
    np.testing.assert_array_equal(began['rank_head']['kernel'], trained['rank_head']['kernel'])
    np.testing.assert_array_equal(began['discriminate_head']['kernel'], drawn['discriminate_head']['kernel'])

    whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
    loop.train_and_evaluate(tags_dc, whole)
    shutil.copytree(whole, stopped)
    for step in Checkpoints(stopped).steps():
        if step > 2:
            shutil.rmtree(stopped / 'checkpoints' / str(step))
    loop.train_and_evaluate(tags_dc, stopped)
    assert_same_run(stopped, whole)
    line = next(line for line in read_metrics(whole) if line['part'] == 'train')
    assert {f'target/terms/{name}' for name in tags_dc['terms']} <= line.keys()
    assert 0 < line['target/generated/count'] <= 3

    assert load_writer(whole, 4).run.step == 4
    writer = load_writer(whole)
    dev = scenes.load('dev', **{key: value for key, value in tags_dc['data'].items() if key != 'source'})
    written = false_sentences(dev, np.arange(20), ['generated'], writer=writer)['generated']
    assert 1 <= max(map(len, written)) <= 3
    for image, captions in enumerate(np.array(dev.captions).reshape(-1, 5)):
        true = {' '.join(tokenize(caption)) for caption in captions}
        assert not true & {sentence for own in written[5 * image : 5 * image + 5] for sentence in own}


def set_up_with(config, **changes):
    config = {**config, 'terms': dict(config['terms'])}
    for key, value in changes.items():
        section, _, name = key.partition('__')
        config[section] = {**config[section], name: value} if name else value
    return functools.partial(loop.set_up, config)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'synthesis__generator': 'x'}, "'synthesis.generator' is 'x', no member"),
        (
            {'masking__num_views': 0},
            "'masking.num_views' is 0, but config key 'synthesis' refills masked sentences: set it",
        ),
        ({'synthesis__num_hard': 9}, r"'synthesis.num_hard' is 9, more than the sentences there are \(.* = 8\)"),
        ({'synthesis__generator': ''}, "'terms.synthetic.rankings' names 'generated'; there are i2t, t2i"),
        ({'candidates__num_hard': 16}, "'candidates.num_hard' is 16, but a query has 15 candidates"),
        ({'candidates__num_extra': 41}, "'candidates.num_extra' is 41, but there are 40 texts for training"),
        ({'augmentation__num_views': 2}, "'augmentation' must leave examples as they are"),
        ({'candidates__source': 'x'}, "'candidates.source' is 'x'; take one of in_batch, listed"),
        ({'relevance__source': 'cider.from_captions'}, "'relevance.source' needs 'candidates.source' 'in_batch'"),
        ({'augmentation__change_words': 0.2}, "'augmentation' must leave examples as they are: masked sentences"),
        ({'model__heads': ('mlm', 'correct')}, "but 'discriminate' is needed: add it"),
    ],
)
def test_what_does_not_go_together_is_refused(tags_dc, changes, message):
    with pytest.raises(UserError, match=message):
        set_up_with(tags_dc, **changes)()


def test_terms_of_words_need_words(tags_dc):
    config = tags_dc | {'rankings': {'source': 'in_batch', 'same_image': 'ignored'}}
    terms = {name: tags_dc['terms'][name] for name in ('ranking', 'correction')}
    off = tags_dc['synthesis'] | {'generator': ''}
    with pytest.raises(UserError, match=r"'terms.correction' needs 'synthesis.generator': set it, or leave the term"):
        loop.set_up(config | {'terms': terms, 'synthesis': off})
    with pytest.raises(UserError, match=r"'masking.num_views' masks sentences for nothing: add a term, or set it to 0"):
        loop.set_up(config | {'terms': {'ranking': terms['ranking']}, 'synthesis': off})


def test_terms_name_rankings_that_have_what_they_take(tags_dc):
    def with_synthetic(**changes):
        return tags_dc | {'terms': tags_dc['terms'] | {'synthetic': tags_dc['terms']['synthetic'] | changes}}

    margins = {'loss': 'ranking.adaptive_margin', 'weight': 1.0, 'candidates': ('generated',)} | {
        key: tags_dc['terms']['synthetic'][key] for key in ('start_epoch', 'end_epoch', 'reduction')
    }
    with pytest.raises(UserError, match=r"'terms.synthetic' needs margins, which only rankings i2t and t2i have"):
        loop.set_up(
            tags_dc
            | {'terms': tags_dc['terms'] | {'synthetic': margins}, 'relevance': {'source': 'cider.from_captions'}}
        )
    for wrong in ('generated', ()):
        with pytest.raises(UserError, match=r"'terms.synthetic.rankings' is .*; give a tuple of some of i2t, t2i, gen"):
            loop.set_up(with_synthetic(rankings=wrong))


@pytest.mark.slow
def test_words_may_be_learned_without_a_triplet_of_sentences(tags_dc):
    terms = {name: term for name, term in tags_dc['terms'].items() if name != 'synthetic'}
    loop.set_up(tags_dc | {'terms': terms})  # traces the step
