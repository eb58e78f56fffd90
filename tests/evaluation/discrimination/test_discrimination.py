"""Words and false sentences: pair by pair in loops, by hand, and from a user's command."""

import base64
import dataclasses
import functools
import io
import json
import subprocess
import sys
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from matplotlib.image import imread

from jitm.analysis import words as shown
from jitm.data import scene_graphs, scenes
from jitm.data.masking import Masking
from jitm.data.pipeline import pad_texts, take_images
from jitm.data.splits import Split
from jitm.data.text import Vocabulary, join
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.evaluation import explain
from jitm.evaluation.discrimination import report as words_report
from jitm.evaluation.discrimination.examples import check_examples, describe_sentences
from jitm.evaluation.discrimination.reader import Judged, PairReader, has_heads, inner_places
from jitm.evaluation.discrimination.report import check_perplexity, correct, evaluate, false_sentences, table
from jitm.evaluation.explain import Retrieved
from jitm.models.uniter import UNITER
from jitm.runs.run import Run
from jitm.synthesis.generator import Synthesis
from jitm.synthesis.trained import Writer, load_writer, write_sentences
from jitm.training.loop import train_and_evaluate
from jitm.types import Batch, Texts
from tests.conftest import environment, run_script
from tests.models.test_matchers import make_vse, perturb
from tests.models.test_uniter import uniter_config  # noqa: F401

CAPTIONS = ('a red ring', 'a disc', 'two red discs , a ring', 'a blue box', 'a ring', 'a red box')
CONFIG = {'run': {'memory_mb': 64}, 'evaluation': {'dtype': 'float32'}}
HEADS = ('mlm', 'discriminate', 'correct')
ALL = np.arange(len(CAPTIONS))
MASKING = Masking(num_views=3, rate=0.3, mask_prob=1.0, random_prob=0.0)
SYNTHESIS = Synthesis(generator='target', num_samples=4, temperature=4.0, num_hard=5)


@pytest.fixture(scope='module')
def split():
    """Four pictures, of which three have two short captions each."""
    dev = scenes.load('dev', dev_images=4)
    return dataclasses.replace(dev, captions=CAPTIONS, image_of_text=np.repeat(np.arange(3, dtype=np.int32), 2))


def make_run(split, model, vocabulary):
    images = take_images(split, np.array([0]), model.reads_locations)
    texts = Texts(np.ones((1, 3), np.int32), np.array([3], np.int32))
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    variables = {**variables, 'params': perturb(variables['params'])}
    return Run('a_run', 7, 'target', model, variables, vocabulary, CONFIG, split.regions.shape[2], 'hash')


@pytest.fixture(scope='module')
def uniter(split):
    vocabulary = Vocabulary.build(split.captions, min_count=1).with_mask()
    model = UNITER(len(vocabulary), size='tiny', dropout=0.1, dtype='float32', heads=HEADS)
    return make_run(split, model, vocabulary)


@pytest.fixture(scope='module')
def vse(split):
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    return make_run(split, make_vse(vocab_size=len(vocabulary)), vocabulary)


def make_reader(run, split):
    """A reader whose blocks hold two images and three pairs."""
    reader = PairReader(run, split)
    reader._scorer.images, reader._scorer.texts = 2, 3
    return reader


@functools.partial(jax.jit, static_argnums=(0, 4))
def say(model, variables, images, texts, heads):
    def apply(model):
        sides = model.encode_image(images), model.encode_text(texts)
        return {'score': model.similarity_pairwise(*sides)} | (model.read_pairs(*sides, heads) if heads else {})

    return model.apply(variables, method=apply)


def alone(run, split, image, ids):
    """What a model says of one pair, without padding, by each of its heads."""
    count = split.counts[image]
    images = take_images(split, np.array([image]), run.model.reads_locations)
    images = images.replace(regions=images.regions[:, :count])
    if run.model.reads_locations:
        images = images.replace(locations=images.locations[:, :count])
    texts = Texts(np.array(ids)[None], np.array([len(ids)], np.int32))
    said = say(run.model, run.variables, images, texts, HEADS if run.model.reads_locations else ())
    return jax.tree.map(lambda x: np.asarray(x, np.float64)[0], said)


def pairs_to_read(run):
    """Five pairs of four images, not in their order, with texts of 5, 8 or 3 words, both ends counted."""
    sentences = ('a red ring', 'two red discs , a ring', 'a', 'a blue box', 'ring')
    return np.array([2, 0, 1, 3, 0]), [run.vocabulary.encode(sentence) for sentence in sentences]


@pytest.mark.parametrize('name', ['uniter', 'vse'])
def test_scores_are_those_of_each_pair_alone(name, split, request):
    run = request.getfixturevalue(name)
    images, texts = pairs_to_read(run)
    got = make_reader(run, split).score(images, join(texts))
    want = [alone(run, split, *pair)['score'] for pair in zip(images, texts, strict=True)]
    assert np.std(want) > 1e-3
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_words_are_judged_as_in_each_pair_alone(uniter, split):
    images, texts = pairs_to_read(uniter)
    got = make_reader(uniter, split).judge(images, join(texts))
    assert got.fits.shape == got.corrections.shape == (5, 8)
    for n, ids in enumerate(texts):
        said = alone(uniter, split, images[n], ids)
        odds = np.exp(said['discriminate'])
        np.testing.assert_allclose(got.fits[n, : len(ids)], odds[:, 1] / odds.sum(axis=1), atol=1e-5)
        np.testing.assert_array_equal(got.corrections[n, : len(ids)], said['correct'].argmax(axis=1))
        assert not got.fits[n, len(ids) :].any()
        assert not got.corrections[n, len(ids) :].any()


def test_likelihoods_are_those_of_each_masked_word_alone(uniter, split):
    images, texts = pairs_to_read(uniter)
    images, texts = images[:3], texts[:3]
    got = make_reader(uniter, split).log_likelihoods(images, join(texts))
    want = np.zeros((3, 8))
    for n, ids in enumerate(texts):
        for place in range(1, len(ids) - 1):
            masked = ids.copy()
            masked[place] = uniter.vocabulary.words.index('<mask>')
            odds = np.exp(alone(uniter, split, images[n], masked)['mlm'][place])
            want[n, place] = np.log(odds[ids[place]] / odds.sum())
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_places_between_the_ends():
    np.testing.assert_array_equal(
        inner_places(np.array([2, 4, 3]), 5), [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
    )


def test_words_that_do_not_fit_are_corrected():
    judged = Judged(np.array([[0.1, 0.5, 0.6, 0.2, 0.0]]), np.array([[9, 8, 7, 6, 5]]))
    corrected = correct(np.array([[1, 3, 4, 2, 0]]), judged, inner_places(np.array([4]), 5))
    np.testing.assert_array_equal(corrected, [[1, 8, 4, 2, 0]])


class Reader:
    """Scores a pair by 10 times the image plus the sum of the ids; even words fit, of others the next one does.

    As with any model, scores in other places of a block differ in the last digits.
    """

    def __init__(self, run):
        self.run, self.judged, self.likely = run, [], []

    def score(self, images, tokens):
        own = [tokens.ids[start:stop].sum() for start, stop in zip(tokens.starts, tokens.starts[1:], strict=False)]
        return (10 * images + own - 0.001 * np.arange(len(own))).astype(np.float32)

    def judge(self, images, tokens):
        self.judged.append(images.tolist())
        ids = words_report._padded(tokens)
        return Judged(np.where(ids % 2 == 0, 0.8, 0.3), np.where(ids % 2, ids + 1, ids))

    def log_likelihoods(self, images, tokens):
        ids = words_report._padded(tokens)
        self.likely.append((images.tolist(), ids.tolist()))
        return np.full(ids.shape, -np.log(2 + len(self.likely)))


WORDS = ('<pad>', '<start>', '<end>', '<unk>', 'a', 'big', 'red', 'ring', 'box', '<mask>')


def test_captions_and_false_sentences_are_compared_by_hand(split, uniter):
    run = dataclasses.replace(uniter, vocabulary=Vocabulary(WORDS))
    split = dataclasses.replace(split, captions=('', 'a red ring', '', 'a big box', '', 'a hat'))
    false = (
        ('not read',),
        ('a red box', 'a big ring', 'ring a red', 'a ring'),
        (),
        ('a big ring', 'a a a a'),
        ('not read',),
        ('a cap', 'a red'),
    )
    reader = Reader(run)
    got = evaluate(reader, split, np.array([1, 3, 5]), {'one': false}, perplexity=True)
    row = got['sets']['one']
    counts = 'captions', 'sentences', 'read_as_the_caption', 'of_another_length'
    assert [row[key] for key in counts] == [3, 8, 1, 2]
    # Not below their caption: `a red box`, `a red`, and `a cap`, which like `a hat` reads as `a <unk>`.
    assert row['sentence_discrimination'] == {'pairwise': 62.5, 'num_hard': pytest.approx(100 / 3)}
    # `a red BOX`, `a BIG ring`, `RING A RED`, `a big RING`, `a RED`: the others are kept words. Odd are big and ring.
    assert row['word_discrimination'] == {
        'overall': pytest.approx(800 / 14),
        'matched': pytest.approx(500 / 7),
        'mismatched': pytest.approx(300 / 7),
        'balanced': pytest.approx(400 / 7),
    }
    assert row['word_correction'] == {'replaced': pytest.approx(200 / 7), 'all': 50}
    assert reader.judged == [[0, 0, 0, 1, 2], [0, 1, 2]]
    assert row['pseudo_perplexity_captions'] == pytest.approx({'sentence': 3, 'corpus': 3})
    assert row['pseudo_perplexity'] == pytest.approx({'sentence': 4, 'corpus': 4})
    assert row['pseudo_perplexity_corrected'] == pytest.approx({'sentence': 5, 'corpus': 5})
    assert reader.likely == [
        ([0, 1, 2], [[1, 4, 6, 7, 2], [1, 4, 5, 8, 2], [1, 4, 3, 2, 0]]),
        ([0, 1, 2], [[1, 4, 6, 8, 2], [1, 4, 5, 7, 2], [1, 4, 3, 2, 0]]),
        ([0, 1, 2], [[1, 4, 6, 8, 2], [1, 4, 6, 8, 2], [1, 4, 4, 2, 0]]),
    ]
    assert table(got).splitlines() == [
        '| false sentences | number | captions | pairwise | hardest |',
        '| --- | --- | --- | --- | --- |',
        '| one | 8 | 3 | 62.5 | 33.3 |',
        '',
        '| words | told apart: overall | that fit | that do not | balanced | corrected: replaced | all |',
        '| --- | --- | --- | --- | --- | --- | --- |',
        '| one | 57.1 | 71.4 | 42.9 | 57.1 | 28.6 | 50.0 |',
        '',
        '| pseudo-perplexity | mean over sentences | over all words |',
        '| --- | --- | --- |',
        '| one, its captions | 3.0 | 3.0 |',
        '| one | 4.0 | 4.0 |',
        '| one, corrected | 5.0 | 5.0 |',
    ]


def test_a_model_without_heads_is_compared_by_sentences_alone(split, vse):
    false = tuple((caption.replace('ring', 'box').replace('red', 'blue'),) for caption in CAPTIONS)
    got = evaluate(make_reader(vse, split), split, np.arange(6), {'one': false})
    row = got['sets'].pop('one')
    assert got == {'sets': {}}
    assert row.keys() == {
        *('captions', 'sentences', 'read_as_the_caption', 'of_another_length', 'sentence_discrimination')
    }
    # `a disc` and `a blue box` are no different, and `discs` are read as such.
    assert (row['captions'], row['read_as_the_caption']) == (6, 2)


def test_a_set_without_sentences_and_scores_that_are_not_finite_are_refused(split, uniter):
    run = dataclasses.replace(uniter, vocabulary=Vocabulary(WORDS))
    with pytest.raises(UserError, match=r"attack 'none' finds nothing to change in 2 captions of scenes/dev; leave it"):
        evaluate(Reader(run), split, np.arange(2), {'none': ((),) * 6})
    reader = Reader(run)
    reader.score = lambda images, tokens: np.full(len(images), np.nan)
    with pytest.raises(UserError, match='scores on scenes/dev are not finite: the model is broken'):
        evaluate(reader, split, np.arange(2), {'one': (('a',),) * 6})


def test_false_sentences_of_scenes():
    dev = scenes.load('dev', dev_images=20)
    sets = false_sentences(dev, ALL, ['swap', 'number', 'noun'], most=2, min_count=5)
    assert list(sets) == ['attribute swap', 'relation swap', 'number', 'noun']
    for name in ('attribute', 'relation'):
        want = [[swap.caption for swap in own if swap.kind == name] for own in dev.swaps]
        assert [list(own) for own in sets[f'{name} swap']] == want
    assert max(map(len, sets['number'])) == max(map(len, sets['noun'])) == 2
    assert all(len(sentences) == dev.num_texts for sentences in sets.values())


def test_scene_graphs_are_read_from_a_file_if_one_is_named(tmp_path):
    dev = scenes.load('dev', dev_images=1)
    path = tmp_path / 'graphs.json'
    records = [{'caption': c, 'objects': [], 'attributes': [], 'relations': []} for c in dev.captions]
    path.write_text(json.dumps(records))
    options = {'most': 2, 'min_count': 1}
    assert not any(false_sentences(dev, ALL, ['relation'], graphs=str(path), **options)['relation'])
    assert any(false_sentences(dev, ALL, ['relation'], **options)['relation'])


def test_attacks_that_a_split_has_not_are_refused(split):
    with pytest.raises(UserError, match=r"--attacks has 'nouns', did you mean 'noun'\?"):
        false_sentences(split, ALL, ['nouns'])
    with pytest.raises(UserError, match='--attacks is empty; give some of swap, generated, noun'):
        false_sentences(split, ALL, [])
    plain = Split(**{field.name: getattr(split, field.name) for field in dataclasses.fields(Split)})
    with pytest.raises(
        UserError, match='scenes/dev has no swaps, which only scenes knows; take noun, number, relation'
    ):
        false_sentences(plain, ALL, ['swap'])
    assert any(false_sentences(plain, ALL, ['number'])['number'])


@pytest.fixture(scope='module')
def writer(uniter):
    run = dataclasses.replace(uniter, config=CONFIG | {'scene_graphs': {'source': ''}})
    generator = dataclasses.replace(run, variables=jax.tree.map(lambda x: -x, run.variables))
    return Writer(run, generator, MASKING, SYNTHESIS)


@pytest.fixture(scope='module')
def generated(writer, split):
    return false_sentences(split, ALL, ['generated'], seed=4, writer=writer)['generated']


def test_sentences_are_written_as_in_training(generated, writer, split):
    """Each caption alone, without padding, by the same keys: refilled by one run, chosen by another."""
    vocabulary = writer.run.vocabulary
    assert sum(map(len, generated)) > 10
    for text, caption in enumerate(split.captions):
        image, ids = split.image_of_text[text], vocabulary.encode(caption)
        texts = pad_texts(join([ids]), np.array([0]), 8)  # of the longest caption
        phrases = [np.eye(len(ids), dtype=bool)[1:-1]]
        masked = MASKING.mask_batch(texts.ids, phrases, vocabulary, seed=4, step=0, texts=np.array([text]))
        known = {word for t in np.flatnonzero(split.image_of_text == image) for word in split.captions[t].split()}
        words = np.array([vocabulary.encode(word)[1] for word in known] + [1, 2])
        shown = take_images(split, np.array([image]), True)
        batch = Batch(0, shown, texts, np.array([image]), masked=masked, caption_words=words[None])
        keys = jax.random.fold_in(jax.random.key(4), text)[None]
        sides = (writer.run, writer.generator)
        model, variables = writer.run.model, [run.variables for run in sides]
        want = SYNTHESIS.choose(model, variables[0], (model, variables[1]), batch, keys)
        decoded = [vocabulary.decode(row[: len(ids)]) for row in want.ids[0][want.there[0]]]
        assert list(generated[text]) == [
            sentence for sentence in decoded if len(vocabulary.encode(sentence)) == len(ids) and '<' not in sentence
        ]
        for sentence in generated[text]:
            assert set(sentence.split()) - known


def test_phrases_are_masked_as_in_the_training_of_the_writer(generated, writer, split):
    config = writer.run.config | {'scene_graphs': {'source': 'scene_graphs.rules'}}
    of_phrases = dataclasses.replace(writer, run=dataclasses.replace(writer.run, config=config))
    given = write_sentences(of_phrases, split, ALL, scene_graphs.rules(split), seed=4)
    assert write_sentences(of_phrases, split, ALL, seed=4) == given != generated
    assert write_sentences(writer, split, ALL, scene_graphs.rules(split), seed=4) == generated


def test_sentences_depend_on_the_seed_and_on_no_other_caption(generated, writer, split):
    some = false_sentences(split, np.array([4, 2]), ['generated'], seed=4, writer=writer)['generated']
    assert [some[t] == generated[t] for t in (2, 4)] == [True, True]
    assert not any(some[t] for t in (0, 1, 3, 5))
    assert false_sentences(split, ALL, ['generated'], seed=5, writer=writer)['generated'] != generated


def test_false_sentences_are_shown_with_what_was_exchanged(uniter, split):
    reader = make_reader(uniter, split)
    sets = {'one': ((), ('a blue disc',), (), ('a ring', 'x'), (), ()), 'two': (('a red box',),) * 6}
    with_words = describe_sentences(reader, split, ALL, sets, 2)
    assert [(pair['set'], pair['text']) for pair in with_words] == [('one', 1), ('one', 3), ('two', 0), ('two', 3)]
    first, second, *_ = with_words
    assert first['words'] == ['<start>', 'a', 'blue', 'disc', '<end>']
    assert (first['caption'], first['changed']) == ('a disc', [False] * 5)
    assert (second['caption'], second['changed']) == ('a blue box', [False] * 4)
    assert with_words[2]['changed'] == [False, False, False, True, False]
    assert with_words[3]['changed'] == [False, False, True, False, False]
    ids = [uniter.vocabulary.encode(sentence) for sentence in ('a disc', 'a blue disc')]
    own, wrong = reader.score(np.zeros(2, int), join(ids))
    assert first['verdict'] == f'one, dev-000000, score {wrong:.3g}, of the caption {own:.3g}'
    judged = reader.judge(np.array([0]), join(ids[1:]))
    np.testing.assert_allclose(first['mismatch'], 1 - judged.fits[0], atol=2e-6)


def test_words_are_shown_of_models_that_judge_them(uniter, vse):
    check_examples(uniter)
    with pytest.raises(UserError, match='with the heads discriminate and correct, which that of a_run lacks; leave'):
        check_examples(vse)


def test_perplexity_takes_a_head_and_a_mask(uniter, vse):
    check_perplexity(uniter)
    with pytest.raises(UserError, match=r"takes a model with the head 'mlm', which that of a_run lacks; leave it out"):
        check_perplexity(vse)
    for vocabulary in (Vocabulary(uniter.vocabulary.words[:-1]), WordPiece(('[PAD]', '[UNK]', '[CLS]', '[SEP]'))):
        with pytest.raises(UserError, match='masks words, but the vocabulary of a_run has no mask; leave it out'):
            check_perplexity(dataclasses.replace(uniter, vocabulary=vocabulary))


@pytest.mark.parametrize(('heads', 'has'), [(HEADS, True), (('mlm', 'discriminate'), False), ((), False)])
def test_heads_are_found_without_computing(heads, has, uniter):
    run = dataclasses.replace(uniter, model=uniter.model.clone(heads=heads))
    assert has_heads(run, HEADS[1:]) == has


def test_what_can_be_explained(uniter):
    explain.check([uniter])
    message = '--explain does not apply to a_run: UNITER has no attention of words over regions to show, nor the heads '
    with pytest.raises(UserError, match=f'{message}discriminate and correct'):
        explain.check([dataclasses.replace(uniter, model=uniter.model.clone(heads=('mlm',)))])


@pytest.fixture(scope='module')
def explained(uniter, split):
    pairs = [Retrieved(2, 1, 1, 0.5), Retrieved(4, 0, 3, 0.25)]
    return explain.describe(uniter, split, pairs, memory_mb=64)


def test_a_pair_is_described_with_what_does_not_fit(explained, uniter, split):
    first, second = explained['pairs']
    assert first['words'] == ['<start>', 'two', 'red', 'discs', ',', 'a', 'ring', '<end>']
    assert (second['image_id'], second['true_image_id'], second['rank']) == ('dev-000000', 'dev-000002', 3)
    assert first['verdict'] == 'retrieved dev-000001, score 0.5, the right image'
    assert second['verdict'] == 'retrieved dev-000000, score 0.25, wrong: dev-000002 comes at rank 3'
    for pair in (first, second):
        ids = uniter.vocabulary.encode(pair['caption'])
        judged = make_reader(uniter, split).judge(np.array([pair['image']]), join([ids]))
        np.testing.assert_allclose(pair['mismatch'], 1 - judged.fits[0], atol=2e-6)
        assert pair['corrections'] == [uniter.vocabulary.words[word] for word in judged.corrections[0]]


PAIR = {
    'caption': 'A <b>dog</b> & its "ball"',
    'words': ['<start>', 'a', '<b>', 'dog', '&', '<end>'],
    'mismatch': [0.9, 0.0, 0.25, 0.995, 0.5, 0.9],
    'corrections': ['x', 'the', 'y', 'cats', '<unk>', 'z'],
    'image': 1,
    'image_id': 'a&b.jpg',
    'verdict': 'retrieved a&b.jpg, score 0.5',
}
REPORT = {'data': 'f30k/test', 'workdir': 'runs/<x>', 'step': 7, 'pairs': [PAIR, PAIR | {'image': 0}]}
HEADING = [PAIR['caption'], PAIR['verdict']]


def test_lines_of_a_pair():
    assert shown.lines(PAIR, colour=False).split('\n') == [
        *HEADING,
        'a <b> dog  &',
        '0 25  100  50',
        '      cats <unk>',
        '',
    ]


def test_lines_of_a_pair_in_colour():
    *heading, words, corrections, end = shown.lines(PAIR, colour=True).split('\n')
    assert (heading, corrections, end) == (HEADING, '      cats <unk>', '')
    shades = [255, 211, 81, 168]
    cells = [f'\x1b[30;48;2;255;{n};{n}m{word}\x1b[0m' for n, word in zip(shades, PAIR['words'][1:-1], strict=True)]
    assert words == f'{cells[0]} {cells[1]} {cells[2]}  {cells[3]}'


def test_exchanged_words_are_underlined():
    pair = PAIR | {'changed': [False, False, True, False, False, False]}
    words = shown.lines(pair, colour=True).split('\n')[2]
    assert words.count('\x1b[4;30;') == 1
    assert '\x1b[4;30;48;2;255;211;211m<b>\x1b[0m' in words
    assert Page(shown.page(REPORT | {'pairs': [pair]}, None)).texts('u') == ['<b>']


def test_long_texts_take_several_lines():
    pair = PAIR | {'words': ['<start>', *['w' * 30] * 7, '<end>'], 'mismatch': [0.1] * 9, 'corrections': ['x'] * 9}
    lines = shown.lines(pair, colour=False).splitlines()[2:]
    assert [line.split() for line in lines] == [
        *(['w' * 30] * 3, ['10'] * 3, ['w' * 30] * 3, ['10'] * 3, ['w' * 30], ['10'])
    ]
    assert max(map(len, lines)) <= shown.WIDTH


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps what they hold."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.attributes = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if tag not in ('meta', 'img'):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.found.append((self.open[-1], data))

    def texts(self, tag):
        return [data for parent, data in self.found if parent == tag]


def test_a_page_is_whole_and_needs_nothing_else():
    pixels = np.zeros((2, 3, 5, 3), np.uint8)
    pixels[1] = 200
    page = Page(shown.page(REPORT, pixels))
    assert page.texts('h1') == page.texts('title') == ['Words that do not fit: f30k/test']
    assert page.texts('footer') == ['runs/<x>, step 7']
    assert page.texts('p')[1:3] == HEADING
    assert page.texts('b') == [*PAIR['words'][1:-1]] * 2
    assert page.texts('small') == ['0', '25', '100', '50'] * 2
    assert page.texts('ins') == ['cats', '<unk>'] * 2
    shades = [attributes['style'] for tag, attributes in page.attributes if tag == 'b'][:4]
    assert shades == ['--shade: 0.00', '--shade: 0.19', '--shade: 0.75', '--shade: 0.38']
    images = [attributes for tag, attributes in page.attributes if tag == 'img']
    assert [image['alt'] for image in images] == ['a&b.jpg'] * 2
    pictures = [base64.b64decode(image['src'].removeprefix('data:image/png;base64,')) for image in images]
    for picture, level in zip(pictures, (200, 0), strict=True):
        drawn = imread(io.BytesIO(picture), format='png')
        np.testing.assert_allclose(drawn[..., :3], np.full((3, 5, 3), level / 255), atol=1e-6)
    values = [value for _, attributes in page.attributes for value in attributes.values()]
    assert not [value for value in values if value.startswith(('http', '//', 'file'))]
    assert not {'script', 'link'} & {tag for tag, _ in page.attributes}


def test_a_page_has_no_pictures_without_pixels():
    assert not [tag for tag, _ in Page(shown.page(REPORT, None)).attributes if tag == 'img']


def test_a_page_takes_the_place_of_older_files(explained, split, tmp_path):
    (tmp_path / '00.png').touch()
    assert explain.write(explained, split.pixels, tmp_path) == f'2 pairs explained in {tmp_path}'
    assert {path.name for path in tmp_path.iterdir()} == {'explain.json', 'explain.html'}
    assert json.loads((tmp_path / 'explain.json').read_text()) == explained
    assert (
        Page((tmp_path / 'explain.html').read_text()).texts('small')[0]
        == f'{100 * explained["pairs"][0]["mismatch"][1]:.0f}'
    )
    assert explain.show(explained, colour=False).count('retrieved dev-00000') == 2


@pytest.mark.slow
def test_the_commands_tell_words_apart(uniter_config, tmp_path):  # noqa: F811
    uniter_config['model'] |= {'heads': HEADS}
    train_and_evaluate(uniter_config, tmp_path / 'run')
    with pytest.raises(UserError, match="writes no sentences for the attack 'generated'"):
        load_writer(tmp_path / 'run')
    result = run_script('eval.py', '--workdir', tmp_path / 'run', '--explain', 2)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / 'run' / 'eval' / 'dev'
    pairs = json.loads((folder / 'explain' / 'explain.json').read_text())['pairs']
    assert f'{pairs[1]["caption"]}\nretrieved {pairs[1]["image_id"]}, score' in result.stdout
    assert '\x1b' not in result.stdout
    command = ('--attacks', 'relation,swap', '--texts', 2, '--most', 1, '--perplexity', '--show', 1)
    command = [sys.executable, '-m', 'jitm.commands.words', '--workdir', tmp_path / 'run', *map(str, command)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    report = json.loads((folder / 'words.json').read_text())
    assert list(report['sets']) == ['relation', 'attribute swap', 'relation swap']
    assert report['protocol']['texts'] == 2
    assert table(report) in result.stdout
    assert result.stdout.endswith(f'written to {folder / "words.json"} and words.html\n')
    verdicts = Page((folder / 'words.html').read_text()).texts('p')[2::2]
    assert [verdict.split(',')[0] for verdict in verdicts] == list(report['sets'])
    assert all(verdict in result.stdout for verdict in verdicts)
