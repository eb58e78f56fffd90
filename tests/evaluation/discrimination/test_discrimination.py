"""Perturbed captions and their words: against single pairs, by hand, and from the command."""

import base64
import dataclasses
import functools
import io
import json

import jax
import numpy as np
import pytest
from matplotlib.image import imread

from jitm.commands import cli
from jitm.data import scene_graphs, scenes
from jitm.data.pairs.compositionality import Choice
from jitm.data.pairs.masking import Masking
from jitm.data.pairs.perturbations import perturber
from jitm.data.splits import Split, pad_texts, take_images
from jitm.data.text.word_level import Vocabulary, join
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.evaluation import explain
from jitm.evaluation.compositional import find_images, score
from jitm.evaluation.discrimination import measures as report_lib
from jitm.evaluation.discrimination import sets as sets_lib
from jitm.evaluation.discrimination.measures import check_perplexity, correct, evaluate, table
from jitm.evaluation.discrimination.sets import perturbed_captions
from jitm.evaluation.explain import check_examples, describe_captions
from jitm.inference.memory import BlockShape
from jitm.inference.pairs import PairScorer, WordPredictions, word_mask
from jitm.inference.scoring import ScoringOptions
from jitm.layers.text import GRUEncoder
from jitm.metrics import Retrieved
from jitm.models.joint import read_pairs
from jitm.models.uniter import UNITER
from jitm.report import explanations
from jitm.runs.run import Run, load_run, read_split
from jitm.synthesis.generator import Synthesis
from jitm.synthesis.trained import TrainedGenerator, generate_captions, load_generator
from jitm.types import Batch, Texts
from tests.support.html import Page
from tests.support.matchers import DIM, MATCHERS, make_vse, perturb
from tests.support.runs import tiny_scenes, write_initial

CAPTIONS = ('a red ring', 'a disc', 'two red discs , a ring', 'a blue box', 'a ring', 'a red box')
CONFIG = {'run': {'memory_mb': 64}, 'evaluation': {'dtype': 'float32', 'precision': 'highest'}}
HEADS = ('mlm', 'discriminate', 'correct')
ALL = np.arange(len(CAPTIONS))
MASKING = Masking(num_views=3, rate=0.3, mask_prob=1.0, random_prob=0.0)
SYNTHESIS = Synthesis(generator='target', num_samples=4, temperature=4.0, num_hard=5)


@pytest.fixture(scope='module')
def split():
    """Four images, three of which have two short captions each."""
    dev = scenes.load('dev', dev_images=4)
    return dataclasses.replace(dev, captions=CAPTIONS, image_of_text=np.repeat(np.arange(3, dtype=np.int32), 2))


def make_run(split, model, vocabulary):
    images = take_images(split, np.array([0]), model.reads)
    texts = Texts(np.ones((1, 3), np.int32), np.array([3], np.int32))
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    variables = {**variables, 'params': perturb(variables['params'])}
    return Run('a_run', 7, 'target', model, variables, vocabulary, CONFIG, split.regions.shape[2], 'hash')


def gru(vocabulary):
    return GRUEncoder(len(vocabulary), DIM, word_dim=5, bidirectional=False, dropout=0.0)


@pytest.fixture(scope='module')
def uniter(split):
    vocabulary = Vocabulary.build(split.captions, min_count=1).with_mask()
    model = UNITER(len(vocabulary), size='tiny', dropout=0.1, dtype='float32', heads=HEADS)
    return make_run(split, model, vocabulary)


@pytest.fixture(scope='module')
def vse(split):
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    return make_run(split, make_vse().clone(text=gru(vocabulary)), vocabulary)


@pytest.fixture(scope='module')
def scan(split):
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    return make_run(split, MATCHERS['scan_t2i'].clone(text=gru(vocabulary)), vocabulary)


def make_scorer(run, split):
    """A scorer whose blocks hold two images and three pairs."""
    scorer = PairScorer(run, split)
    scorer._scorer.shape = BlockShape(2, 3)
    return scorer


@functools.partial(jax.jit, static_argnums=(0, 4))
def outputs_of(model, variables, images, texts, heads):
    def apply(model):
        sides = model.encode_image(images), model.encode_text(texts)
        return {'score': model.similarity_pairwise(*sides)} | (read_pairs(model, *sides, heads) if heads else {})

    return model.apply(variables, method=apply)


def alone(run, split, image, ids):
    """The outputs of all heads for one pair, without padding."""
    count = split.counts[image]
    images = take_images(split, np.array([image]), run.model.reads)
    images = images.replace(regions=images.regions[:, :count])
    if 'locations' in run.model.reads:
        images = images.replace(locations=images.locations[:, :count])
    texts = Texts(np.array(ids)[None], np.array([len(ids)], np.int32))
    outputs = outputs_of(run.model, run.variables, images, texts, HEADS if 'locations' in run.model.reads else ())
    return jax.tree.map(lambda x: np.asarray(x, np.float64)[0], outputs)


def pairs_to_read(run):
    """Five pairs of four images in mixed order, with captions of 5, 8 or 3 tokens."""
    captions = ('a red ring', 'two red discs , a ring', 'a', 'a blue box', 'ring')
    return np.array([2, 0, 1, 3, 0]), [run.vocabulary.encode(caption) for caption in captions]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['uniter', 'vse', 'scan'])
def test_choices_are_scored_with_any_model(name, split, request):
    run = request.getfixturevalue(name)
    captions = ('a red ring', 'two red discs , a ring')
    pairs = Choice('0', 'Winoground', 'x', (split.image_ids[3], split.image_ids[1]), captions, ((0, 0), (1, 1)))
    taken, kept, missing = find_images([pairs], split, {}, None, 'x')
    assert (taken.num_images, missing) == (2, [])
    (got,) = score(make_scorer(run, taken), taken, kept)
    ids = list(map(run.vocabulary.encode, captions))
    want = [[alone(run, split, image, text)['score'] for text in ids] for image in (3, 1)]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_word_predictions_equal_those_of_single_pairs(uniter, split):
    images, texts = pairs_to_read(uniter)
    got = make_scorer(uniter, split).predict_words(images, join(texts))
    assert got.match_prob.shape == got.corrections.shape == (5, 8)
    for n, ids in enumerate(texts):
        outputs = alone(uniter, split, images[n], ids)
        odds = np.exp(outputs['discriminate'])
        np.testing.assert_allclose(got.match_prob[n, : len(ids)], odds[:, 1] / odds.sum(axis=1), atol=1e-5)
        np.testing.assert_array_equal(got.corrections[n, : len(ids)], outputs['correct'].argmax(axis=1))
        assert not got.match_prob[n, len(ids) :].any()
        assert not got.corrections[n, len(ids) :].any()


@pytest.mark.slow
def test_log_likelihoods_equal_those_of_single_words(uniter, split):
    images, texts = pairs_to_read(uniter)
    images = images[:3]
    texts = texts[:3]
    got = make_scorer(uniter, split).log_likelihoods(images, join(texts))
    want = np.zeros((3, 8))
    for n, ids in enumerate(texts):
        for position in range(1, len(ids) - 1):
            masked = ids.copy()
            masked[position] = uniter.vocabulary.words.index('<mask>')
            odds = np.exp(alone(uniter, split, images[n], masked)['mlm'][position])
            want[n, position] = np.log(odds[ids[position]] / odds.sum())
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_mismatched_words_are_corrected():
    predictions = WordPredictions(np.array([[0.1, 0.5, 0.6, 0.2, 0.0]]), np.array([[9, 8, 7, 6, 5]]))
    corrected = correct(np.array([[1, 3, 4, 2, 0]]), predictions, word_mask(np.array([4]), 5))
    np.testing.assert_array_equal(corrected, [[1, 8, 4, 2, 0]])


class FakeScorer:
    """Scores a pair by 10 times the image plus the sum of the ids; odd words mismatch and are corrected to the next.

    As with any model, scores differ slightly by the row of a block.
    """

    def __init__(self, run):
        self.run = run
        self.predicted = []
        self.masked = []

    def score(self, images, tokens):
        own = [tokens.ids[start:stop].sum() for start, stop in zip(tokens.starts, tokens.starts[1:], strict=False)]
        return (10 * images + own - 0.001 * np.arange(len(own))).astype(np.float32)

    def predict_words(self, images, tokens):
        self.predicted.append(images.tolist())
        ids = report_lib._padded(tokens)
        return WordPredictions(np.where(ids % 2 == 0, 0.8, 0.3), np.where(ids % 2, ids + 1, ids))

    def log_likelihoods(self, images, tokens):
        ids = report_lib._padded(tokens)
        self.masked.append((images.tolist(), ids.tolist()))
        return np.full(ids.shape, -np.log(2 + len(self.masked)))


WORDS = ('<pad>', '<start>', '<end>', '<unk>', 'a', 'big', 'red', 'ring', 'box', '<mask>')


@pytest.mark.slow
def test_evaluation_by_hand(split, uniter):
    run = dataclasses.replace(uniter, vocabulary=Vocabulary(WORDS))
    split = dataclasses.replace(split, captions=('', 'a red ring', '', 'a big box', '', 'a hat'))
    perturbed = (
        ('not read',),
        ('a red box', 'a big ring', 'ring a red', 'a ring'),
        (),
        ('a big ring', 'a a a a'),
        ('not read',),
        ('a cap', 'a red'),
    )
    scorer = FakeScorer(run)
    got = evaluate(scorer, split, np.array([1, 3, 5]), {'one': perturbed}, perplexity=True)
    row = got['sets']['one']
    counts = 'captions', 'perturbed', 'identical_tokens', 'different_length'
    assert [row[key] for key in counts] == [3, 8, 1, 2]
    # Not below their caption: `a red box`, `a red`, and `a cap`, which is tokenized as `a <unk>` like `a hat`.
    assert row['caption_discrimination'] == {'pairwise': 62.5, 'hardest': pytest.approx(100 / 3)}
    # `a red BOX`, `a BIG ring`, `RING A RED`, `a big RING`, `a RED`: the others are kept words. Odd are big and ring.
    assert row['word_discrimination'] == {
        'overall': pytest.approx(800 / 14),
        'matched': pytest.approx(500 / 7),
        'mismatched': pytest.approx(300 / 7),
        'balanced': pytest.approx(400 / 7),
    }
    assert row['word_correction'] == {'replaced': pytest.approx(200 / 7), 'all': 50}
    assert scorer.predicted == [[0, 0, 0, 1, 2], [0, 1, 2]]
    assert row['pseudo_perplexity_captions'] == pytest.approx({'caption': 3, 'corpus': 3})
    assert row['pseudo_perplexity'] == pytest.approx({'caption': 4, 'corpus': 4})
    assert row['pseudo_perplexity_corrected'] == pytest.approx({'caption': 5, 'corpus': 5})
    assert scorer.masked == [
        ([0, 1, 2], [[1, 4, 6, 7, 2], [1, 4, 5, 8, 2], [1, 4, 3, 2, 0]]),
        ([0, 1, 2], [[1, 4, 6, 8, 2], [1, 4, 5, 7, 2], [1, 4, 3, 2, 0]]),
        ([0, 1, 2], [[1, 4, 6, 8, 2], [1, 4, 6, 8, 2], [1, 4, 4, 2, 0]]),
    ]
    assert table(got).splitlines() == [
        '| perturbed captions | number | captions | pairwise | hardest |',
        '| --- | --- | --- | --- | --- |',
        '| one | 8 | 3 | 62.5 | 33.3 |',
        '',
        '| truth in % | false | true | not parsed |',
        '| --- | --- | --- | --- |',
        '| one | 0.0 | 0.0 | 100.0 |',
        '',
        '| words | detected: overall | matched | mismatched | balanced | corrected: replaced | all |',
        '| --- | --- | --- | --- | --- | --- | --- |',
        '| one | 57.1 | 71.4 | 42.9 | 57.1 | 28.6 | 50.0 |',
        '',
        '| pseudo-perplexity | mean over captions | over all words |',
        '| --- | --- | --- |',
        '| one, of the originals | 3.0 | 3.0 |',
        '| one | 4.0 | 4.0 |',
        '| one, corrected | 5.0 | 5.0 |',
    ]


def test_model_without_word_heads_scores_captions_only(split, vse):
    perturbed = tuple((caption.replace('ring', 'box').replace('red', 'blue'),) for caption in CAPTIONS)
    got = evaluate(make_scorer(vse, split), split, np.arange(6), {'one': perturbed})
    row = got['sets'].pop('one')
    assert got == {'sets': {}}
    counts = 'captions', 'perturbed', 'identical_tokens', 'different_length'
    assert row.keys() == {*counts, 'caption_discrimination', 'truth'}
    # `a disc` and `a blue box` are unchanged.
    assert (row['captions'], row['identical_tokens']) == (6, 2)


def test_empty_sets_and_scores_that_are_not_finite_are_refused(split, uniter):
    run = dataclasses.replace(uniter, vocabulary=Vocabulary(WORDS))
    with pytest.raises(UserError, match=r"perturbation 'none' finds nothing to change in 2 captions of scenes/dev"):
        evaluate(FakeScorer(run), split, np.arange(2), {'none': ((),) * 6})
    scorer = FakeScorer(run)
    scorer.score = lambda images, tokens: np.full(len(images), np.nan)
    with pytest.raises(UserError, match='scores on scenes/dev are not finite: the model is broken'):
        evaluate(scorer, split, np.arange(2), {'one': (('a',),) * 6})


def test_perturbed_captions_of_scenes():
    dev = scenes.load('dev', dev_images=20)
    sets = perturbed_captions(dev, ALL, ['swap', 'number', 'noun'], max_per_caption=2, min_count=5)
    assert list(sets) == ['attribute swap', 'relation swap', 'number', 'noun']
    for name in ('attribute', 'relation'):
        want = [[swap.caption for swap in own if swap.kind == name] for own in dev.swaps]
        assert [list(own) for own in sets[f'{name} swap']] == want
    assert max(map(len, sets['number'])) == max(map(len, sets['noun'])) == 2
    assert all(len(captions) == dev.num_texts for captions in sets.values())


def test_scene_graphs_are_read_from_a_file(tmp_path):
    dev = scenes.load('dev', dev_images=1)
    path = tmp_path / 'graphs.json'
    records = [{'caption': c, 'objects': [], 'attributes': [], 'relations': []} for c in dev.captions]
    path.write_text(json.dumps(records))
    options = {'max_per_caption': 2, 'min_count': 1}
    assert not any(perturbed_captions(dev, ALL, ['relation'], graphs=str(path), **options)['relation'])
    assert any(perturbed_captions(dev, ALL, ['relation'], **options)['relation'])


def test_unavailable_perturbations_are_refused(split):
    with pytest.raises(UserError, match=r"--perturbations has 'nouns', did you mean 'noun'\?"):
        perturbed_captions(split, ALL, ['nouns'])
    with pytest.raises(UserError, match='--perturbations is empty; give some of swap, generated, in_batch'):
        perturbed_captions(split, ALL, [])
    plain = Split(**{field.name: getattr(split, field.name) for field in dataclasses.fields(Split)})
    with pytest.raises(UserError, match='scenes/dev has no swaps, only scenes has them; use noun, number, relation'):
        perturbed_captions(plain, ALL, ['swap'])
    assert any(perturbed_captions(plain, ALL, ['number'])['number'])


def test_hardest_captions_of_other_images(split, vse, monkeypatch):
    monkeypatch.setitem(sets_lib.RETRIEVED, 'in_batch', 3)
    scorer = make_scorer(vse, split)
    texts = np.array([1, 4])
    sets = perturbed_captions(split, texts, ['in_batch', 'retrieved'], seed=2, scorer=scorer)
    for text in texts:
        others = np.flatnonzero(split.image_of_text != split.image_of_text[text])
        captions = join([vse.vocabulary.encode(split.captions[row]) for row in others])
        scores = scorer.score(np.full(len(others), split.image_of_text[text]), captions)
        assert sets['retrieved'][text] == (split.captions[others[np.argmax(scores)]],)
        sample = np.random.default_rng([2, text]).permutation(len(others))[:2]
        assert sets['in_batch'][text] == (split.captions[others[sample[np.argmax(scores[sample])]]],)
    assert not any(sets[name][text] for name in sets for text in set(range(split.num_texts)) - {*texts})


@pytest.fixture(scope='module')
def generator(uniter):
    run = dataclasses.replace(uniter, config=CONFIG | {'precision': 'high', 'scene_graphs': {'source': ''}})
    other = dataclasses.replace(run, variables=jax.tree.map(lambda x: -x, run.variables))
    return TrainedGenerator(run, other, MASKING, SYNTHESIS)


@pytest.fixture(scope='module')
def generated(generator, split):
    return perturbed_captions(split, ALL, ['generated'], seed=4, generator=generator)['generated']


@pytest.mark.slow
def test_captions_are_generated_as_in_training(generated, generator, split):
    """Compares with single captions: refilled by one run and selected by another, with the same keys."""
    vocabulary = generator.run.vocabulary
    assert sum(map(len, generated)) > 10
    for text, caption in enumerate(split.captions):
        image = split.image_of_text[text]
        ids = vocabulary.encode(caption)
        texts = pad_texts(join([ids]), np.array([0]), 8)  # of the longest caption
        phrases = [np.eye(len(ids), dtype=bool)[1:-1]]
        masked = MASKING.mask_batch(texts.ids, phrases, vocabulary, seed=4, step=0, texts=np.array([text]))
        known = {word for t in np.flatnonzero(split.image_of_text == image) for word in split.captions[t].split()}
        words = np.array([vocabulary.encode(word)[1] for word in known] + [1, 2])
        features = take_images(split, np.array([image]), generator.run.model.reads)
        batch = Batch(0, features, texts, np.array([image]), drawn={'masked': (masked, words[None])})
        keys = jax.random.fold_in(jax.random.key(4), text)[None]
        sides = (generator.run, generator.generator)
        model = generator.run.model
        variables = [run.variables for run in sides]
        want = SYNTHESIS.choose(model, variables[0], (model, variables[1]), batch, keys)
        decoded = [vocabulary.decode(row[: len(ids)]) for row in want.ids[0][want.valid[0]]]
        assert list(generated[text]) == [
            caption for caption in decoded if len(vocabulary.encode(caption)) == len(ids) and '<' not in caption
        ]
        for caption in generated[text]:
            assert set(caption.split()) - known


@pytest.mark.slow
def test_phrases_are_masked_as_in_training(generated, generator, split):
    config = generator.run.config | {'scene_graphs': {'source': 'scene_graphs.rules'}}
    of_phrases = dataclasses.replace(generator, run=dataclasses.replace(generator.run, config=config))
    given = generate_captions(of_phrases, split, ALL, scene_graphs.rules(split), seed=4)
    assert generate_captions(of_phrases, split, ALL, seed=4) == given != generated
    assert generate_captions(generator, split, ALL, scene_graphs.rules(split), seed=4) == generated


def test_generated_captions_depend_on_the_seed_only(generated, generator, split):
    some = perturbed_captions(split, np.array([4, 2]), ['generated'], seed=4, generator=generator)['generated']
    assert [some[t] == generated[t] for t in (2, 4)] == [True, True]
    assert not any(some[t] for t in (0, 1, 3, 5))
    assert perturbed_captions(split, ALL, ['generated'], seed=5, generator=generator)['generated'] != generated


@pytest.mark.slow
def test_examples_mark_changed_words(uniter, split):
    scorer = make_scorer(uniter, split)
    sets = {'one': ((), ('a blue disc',), (), ('a ring', 'x'), (), ()), 'two': (('a red box',),) * 6}
    described = describe_captions(scorer, split, ALL, sets, 2)
    assert [(pair['set'], pair['text']) for pair in described] == [('one', 1), ('one', 3), ('two', 0), ('two', 3)]
    first, second, *_ = described
    assert first['words'] == ['<start>', 'a', 'blue', 'disc', '<end>']
    assert (first['caption'], first['changed']) == ('a disc', [False] * 5)
    assert (second['caption'], second['changed']) == ('a blue box', [False] * 4)
    assert described[2]['changed'] == [False, False, False, True, False]
    assert described[3]['changed'] == [False, False, True, False, False]
    ids = [uniter.vocabulary.encode(caption) for caption in ('a disc', 'a blue disc')]
    score, perturbed_score = scorer.score(np.zeros(2, int), join(ids))
    assert first['verdict'] == f'one, dev-000000, score {perturbed_score:.3g}, caption {score:.3g}'
    predictions = scorer.predict_words(np.array([0]), join(ids[1:]))
    np.testing.assert_allclose(first['mismatch'], 1 - predictions.match_prob[0], atol=2e-6)


def test_examples_need_word_heads(uniter, vse):
    check_examples(uniter)
    with pytest.raises(UserError, match='with the heads discriminate and correct, which a_run lacks; leave'):
        check_examples(vse)


def test_perplexity_needs_a_head_and_a_mask_token(uniter, vse):
    check_perplexity(uniter)
    with pytest.raises(UserError, match=r"needs a model with the head 'mlm', which a_run lacks; leave it out"):
        check_perplexity(vse)
    for vocabulary in (Vocabulary(uniter.vocabulary.words[:-1]), WordPiece.of(('[PAD]', '[UNK]', '[CLS]', '[SEP]'))):
        with pytest.raises(UserError, match='masks words, but the vocabulary of a_run has no mask token; leave it out'):
            check_perplexity(dataclasses.replace(uniter, vocabulary=vocabulary))


def test_explain_needs_word_heads_or_attention(uniter):
    explain.check([uniter])
    message = '--explain does not apply to a_run: UNITER has no attention of words over regions, nor the heads '
    with pytest.raises(UserError, match=f'{message}discriminate and correct'):
        explain.check([dataclasses.replace(uniter, model=uniter.model.clone(heads=('mlm',)))])


@pytest.fixture(scope='module')
def explained(uniter, split):
    pairs = [(2, Retrieved([1], [0.5], [True], 1)), (4, Retrieved([0], [0.25], [False], 3))]
    return explain.describe(uniter, split, pairs, ScoringOptions(memory_mb=64))


def test_description_has_mismatched_words(explained, uniter, split):
    first, second = explained['pairs']
    assert first['words'] == ['<start>', 'two', 'red', 'discs', ',', 'a', 'ring', '<end>']
    assert (second['image_id'], second['true_image_id'], second['rank']) == ('dev-000000', 'dev-000002', 3)
    assert first['verdict'] == 'retrieved dev-000001, score 0.5, the right image'
    assert second['verdict'] == 'retrieved dev-000000, score 0.25, wrong; the right image, dev-000002, is at rank 3'
    for pair in (first, second):
        ids = uniter.vocabulary.encode(pair['caption'])
        predictions = make_scorer(uniter, split).predict_words(np.array([pair['image']]), join([ids]))
        np.testing.assert_allclose(pair['mismatch'], 1 - predictions.match_prob[0], atol=2e-6)
        assert pair['corrections'] == [uniter.vocabulary.words[word] for word in predictions.corrections[0]]


PAIR = {
    'caption': 'A <b>dog</b> & its "ball"',
    'words': ['<start>', 'a', '<b>', 'dog', '&', '<end>'],
    'mismatch': [0.9, 0.0, 0.25, 0.995, 0.5, 0.9],
    'corrections': ['x', 'the', 'y', 'cats', '<unk>', 'z'],
    'image': 1,
    'image_id': 'a&b.jpg',
    'verdict': 'retrieved a&b.jpg, score 0.5',
}
NO_PICTURE = {}.get
REPORT = {'data': 'f30k/test', 'workdir': 'runs/<x>', 'step': 7, 'pairs': [PAIR, PAIR | {'image': 0}]}
HEADING = [PAIR['caption'], PAIR['verdict']]


def test_lines_of_pairs():
    matched = PAIR | {'mismatch': [0.0] * 6}
    assert explanations.lines([PAIR, matched]).split('\n') == [
        *HEADING,
        'mismatched: dog (100 %, cats), & (50 %, <unk>)',
        '',
        *HEADING,
        'mismatched: none',
        '',
    ]


def test_changed_words_are_underlined():
    pair = PAIR | {'changed': [False, False, True, False, False, False]}
    assert Page(explanations.page(REPORT | {'pairs': [pair]}, NO_PICTURE)).texts['u'] == ['<b>']


def test_page_is_complete_and_self_contained():
    pixels = np.zeros((2, 3, 5, 3), np.uint8)
    pixels[1] = 200
    page = Page(explanations.page(REPORT, pixels.__getitem__))
    assert page.texts['h1'] == page.texts['title'] == ['Mismatched words: f30k/test']
    assert page.texts['footer'] == ['runs/<x>, step 7']
    assert page.texts['p'][1:3] == HEADING
    assert page.texts['b'] == [*PAIR['words'][1:-1]] * 2
    assert page.texts['small'] == ['0', '25', '100', '50'] * 2
    assert page.texts['ins'] == ['cats', '<unk>'] * 2
    shades = [attributes['style'] for tag, attributes in page.attributes if tag == 'b'][:4]
    assert shades == ['--shade: 0.00', '--shade: 0.19', '--shade: 0.75', '--shade: 0.38']
    images = [attributes for tag, attributes in page.attributes if tag == 'img']
    assert [image['alt'] for image in images] == ['a&b.jpg'] * 2
    pictures = [base64.b64decode(image['src'].removeprefix('data:image/png;base64,')) for image in images]
    for picture, level in zip(pictures, (200, 0), strict=True):
        drawn = imread(io.BytesIO(picture), format='png')
        np.testing.assert_allclose(drawn[..., :3], np.full((3, 5, 3), level / 255), atol=1e-6)
    assert all(address.startswith('data:') for address in page.addresses)
    assert not {'script', 'link'} & {tag for tag, _ in page.attributes}


def test_page_shows_words_for_the_right_image_of_a_wrong_one():
    pair = REPORT['pairs'][0]
    outputs = {key: pair[key] for key in ('words', 'mismatch', 'corrections')} | {'boxes': None}
    wrong = {'image': 0, 'true_image': 1, 'true_image_id': 'b.jpg', 'rank': 3, 'on_true_image': outputs}
    page = Page(explanations.page(REPORT | {'pairs': [pair | wrong]}, np.zeros((2, 3, 5, 3), np.uint8).__getitem__))
    assert [attributes['alt'] for tag, attributes in page.attributes if tag == 'img'] == ['a&b.jpg', 'b.jpg']
    assert page.texts['p'][3:] == [pair['caption'], 'the right image, at rank 3']
    assert page.texts['ins'] == ['cats', '<unk>'] * 2


@pytest.mark.filterwarnings('ignore:words that the vocabulary')
@pytest.mark.slow
def test_commands(tmp_path, capsys):
    config = tiny_scenes('uniter:pretrain,scenes')
    config['model']['heads'] = HEADS
    write_initial(config, tmp_path / 'run')
    with pytest.raises(UserError, match='has no generator of captions'):
        load_generator(tmp_path / 'run')
    capsys.readouterr()
    assert cli.main(['eval', f'--workdir={tmp_path / "run"}', '--explain=2']) == 0
    output = capsys.readouterr().out
    folder = tmp_path / 'run' / 'eval' / 'dev'
    pairs = json.loads((folder / 'explain' / 'explain.json').read_text())['pairs']
    assert f'{pairs[1]["caption"]}\nretrieved {pairs[1]["image_id"]}, score' in output
    assert '\x1b' not in output
    flags = '--perturbations=relation,swap --texts=2 --max_per_caption=1 --perplexity --show=1 --save_perturbed'
    assert cli.main(['words', f'--workdir={tmp_path / "run"}', *flags.split()]) == 0
    output = capsys.readouterr().out
    report = json.loads((folder / 'words.json').read_text())
    assert list(report['sets']) == ['relation', 'attribute swap', 'relation swap']
    assert report['protocol']['texts'] == 2
    assert table(report) in output
    assert output.endswith(f'written to {folder}: words.json, words.html, perturbed.jsonl\n')
    lines = [json.loads(line) for line in (folder / 'perturbed.jsonl').read_text().splitlines()]
    assert sum(len(line['perturbed']) for line in lines) == sum(row['perturbed'] for row in report['sets'].values())
    split = read_split([load_run(tmp_path / 'run')], 'dev')
    kind = perturber(split, None, str(folder / 'perturbed.jsonl'))
    assert kind(split.captions.index(lines[0]['caption'])) == lines[0]['perturbed'] != []
    verdicts = Page((folder / 'words.html').read_text()).texts['p'][2::2]
    assert [verdict.split(',')[0] for verdict in verdicts] == list(report['sets'])
    assert all(verdict in output for verdict in verdicts)


def test_the_truth_of_captions_of_scenes(split):
    graph = split.graphs[0]
    thing = graph.objects[0]
    captions = [
        f'we see a {thing.size} {thing.colour} {thing.shape} , a {graph.objects[1].shape} and a pink ring .',
        f'the picture shows a {thing.colour} {thing.shape} and a {graph.objects[1].colour} {graph.objects[1].shape} .',
        f'the picture shows a {thing.colour} {thing.shape} and a {thing.size} {thing.colour} {thing.shape} .',
        f'a {thing.shape}',
    ]
    assert report_lib.truth(captions, [0] * 4, split) == {'false': 25.0, 'true': 25.0, 'not_parsed': 50.0}
    assert report_lib.truth([swap.caption for swap in split.swaps[0]], [0] * len(split.swaps[0]), split)['false'] == 100
