"""A training step that writes its own negative sentences: TAGS and TAGS-DC (paper 001)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm import parallel
from jitm.errors import UserError
from jitm.losses import ranking, tokens
from jitm.models.uniter import UNITER
from jitm.synthesis import refill
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.training.candidates import Shortlist, ShortlistScores
from jitm.training.diagnostics import BINS, difficulty
from jitm.training.generated import score_synthetic
from jitm.training.members import Member, MemberState, frozen, gradient
from jitm.training.objective import Term
from jitm.training.step import TrainState, make_train_step
from jitm.types import Batch, Masked, Texts
from tests.models.test_matchers import VOCABULARY, make_inputs, perturb

MODEL = UNITER(VOCABULARY, 'tiny', dropout=0.0, dtype='float32', heads=('mlm', 'discriminate', 'correct'))
PAIRS, VARIANTS, LENGTH = 2, 3, 7
MASK = VOCABULARY - 1
SYNTHESIS = Synthesis(generator='target', num_samples=4, temperature=1.5, num_hard=5)
COUNTS = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}
HINGES = functools.partial(ranking.mean_of_hinges, margin=0.2)
TERMS = {
    'ranking': Term(HINGES, **COUNTS),
    'synthetic': Term(HINGES, **COUNTS, rankings=('generated',)),
    'masked': Term(tokens.masked_language_modeling, **COUNTS, predictions='masked_language_modeling'),
    'discrimination': Term(
        functools.partial(tokens.word_discrimination, match_weight=0.11), **COUNTS, predictions='word_discrimination'
    ),
    'correction': Term(tokens.word_correction, **COUNTS, predictions='word_correction'),
}


def make_batch():
    images, texts = make_inputs(PAIRS, PAIRS)
    texts = texts.replace(lengths=np.array([7, 4], np.int32))
    rng = np.random.default_rng(0)
    ids = np.where(texts.mask, rng.integers(1, MASK, (PAIRS, LENGTH)), 0).astype(np.int32)
    labelled = np.zeros((PAIRS, VARIANTS, LENGTH), bool)
    labelled[0, 0, 1:3] = labelled[0, 1, 4] = labelled[0, 2, 2] = labelled[1, :, 1] = labelled[1, 2, 2] = True
    masked = Masked(np.where(labelled, MASK, ids[:, None]).astype(np.int32), labelled)
    known = np.full((PAIRS, 8), -1, np.int32)
    for row, words in zip(known, ids, strict=True):
        row[: len(np.unique(words[words > 0]))] = np.unique(words[words > 0])
    texts = texts.replace(ids=ids)
    return Batch(np.int32(0), images, texts, np.array([4, 6], np.int32), masked=masked, caption_words=known)


@pytest.fixture(scope='module')
def params():
    batch = make_batch()
    return perturb(jax.jit(MODEL.init)(jax.random.key(0), batch.images, batch.texts)['params'])


@pytest.fixture(scope='module')
def written(params):
    """What the model writes for itself, and the keys it wrote with."""
    variables, keys = {'params': params}, jax.random.split(jax.random.key(3), PAIRS)
    choose = jax.jit(lambda batch: SYNTHESIS.choose(MODEL, variables, (MODEL, variables), batch, keys))
    return jax.device_get(choose(make_batch())), keys


@jax.jit
def read(params, images, ids, lengths):
    """What every head says of image n with text n."""

    def heads(matcher):
        texts = matcher.encode_text(Texts(ids, lengths))
        return matcher.read_pairs(matcher.encode_image(images), texts, ('rank', 'mlm', 'discriminate', 'correct'))

    return MODEL.apply({'params': params}, method=heads)


def read_pairs(params, pairs):
    """The same of pairs (image, ids, length), all with one compilation."""
    batch, most = make_batch(), VARIANTS * SYNTHESIS.num_samples
    rows, ids, lengths = zip(*(list(pairs) + [pairs[0]] * (most - len(pairs))), strict=True)
    images = jax.tree.map(lambda x: x[list(rows)], batch.images)
    said = jax.device_get(read(params, images, np.array(ids, np.int32), np.array(lengths, np.int32)))
    return {head: values[: len(pairs)].astype(np.float64) for head, values in said.items()}


def read_one(params, n, ids):
    """What every head says of image n with sentences as long as its own."""
    return read_pairs(params, [(n, sentence, make_batch().texts.lengths[n]) for sentence in ids])


def test_the_best_new_sentences_are_kept_and_the_true_one_is_none_of_them(params, written):
    synthetic, keys = written
    batch = make_batch()
    for n, row_key in enumerate(keys):
        masked = jax.tree.map(lambda x, n=n: x[n], batch.masked)
        logits = read_one(params, n, masked.ids)['mlm'].astype(np.float32)
        drawn = np.asarray(refill.refill(logits, masked, SYNTHESIS.num_samples, SYNTHESIS.temperature, row_key))
        own, known = batch.texts.ids[n].tolist(), set(batch.caption_words[n].tolist())
        allowed = {}
        for k, sentence in enumerate(drawn.tolist()):
            changed = {new for new, old in zip(sentence, own, strict=True) if new != old}
            if changed - known:
                allowed.setdefault(tuple(sentence), k)
        scores = dict(zip(allowed, read_one(params, n, list(allowed))['rank'], strict=True))
        best = sorted(scores, key=scores.get, reverse=True)
        kept = synthetic.ids[n][synthetic.there[n]]
        assert [tuple(row) for row in kept.tolist()] == best[: SYNTHESIS.num_hard]
        for sentence, places in zip(kept, synthetic.labelled[n], strict=False):
            np.testing.assert_array_equal(places, masked.labelled[allowed[tuple(sentence.tolist())] // 4])
    assert synthetic.there.any()


def make_step(terms=TERMS, **members):
    target = Member(MODEL, gradient, optax.trace(0.0))
    source = Shortlist(num_extra=0, num_hard=1)
    synthesis = dataclasses.replace(SYNTHESIS, generator='generator' if members else 'target')
    options = {'seed': 0, 'steps_per_epoch': 2, 'epochs': 1, 'synthesis': synthesis}
    return jax.jit(make_train_step({'target': target, **members}, terms, source, **options))


def state_of(params, **others):
    target = MemberState(params, {}, optax.trace(0.0).init(params))
    return TrainState(jnp.int32(0), {'target': target, **others})


@pytest.fixture(scope='module')
def stepped(params):
    return make_step()(state_of(params), make_batch())


def hinges(scores, wrong):
    return np.mean(np.maximum(0.2 + wrong - scores, 0)) if len(wrong) else 0.0


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_terms_are_those_of_the_paper_over_what_the_step_wrote(params, stepped):
    """From the sentences that the step has written, each loss by loops over its definition."""
    _, metrics = stepped
    batch = make_batch()
    key = jax.random.fold_in(jax.random.key(0), 0)
    key = jax.random.fold_in(jax.random.fold_in(key, 0), 1)  # of the member, of its sentences
    variables, keys = {'params': params}, jax.random.split(key, PAIRS)
    choose = jax.jit(lambda batch: SYNTHESIS.choose(MODEL, variables, (MODEL, variables), batch, keys))
    synthetic = jax.device_get(choose(batch))
    want = dict.fromkeys(TERMS, 0.0)
    for n in range(PAIRS):
        own, length = batch.texts.ids[n], batch.texts.lengths[n]
        there = synthetic.there[n]
        wrong = read_one(params, n, synthetic.ids[n][there])
        said = read_one(params, n, own[None])
        positive = sigmoid(said['rank'][0])
        want['synthetic'] += hinges(positive, sigmoid(wrong['rank'])) / PAIRS
        other = 1 - n, batch.texts.ids[1 - n], batch.texts.lengths[1 - n]
        for pair in ((n, *other[1:]), (1 - n, own, length)):
            want['ranking'] += hinges(positive, sigmoid(read_pairs(params, [pair])['rank'])) / PAIRS
        variants = read_one(params, n, batch.masked.ids[n])['mlm']
        costs = [
            -log_softmax(variants[k, place])[own[place]] for k, place in np.argwhere(batch.masked.labelled[n]).tolist()
        ]
        want['masked'] += np.mean(costs) / PAIRS
        told, corrected = [], []
        for s in range(there.sum()):
            ids, places = synthetic.ids[n][s], synthetic.labelled[n][s]
            for place in range(length):
                match = int(ids[place] == own[place])
                cost = -log_softmax(wrong['discriminate'][s, place])[match]
                told.append(cost * (0.11 if match else 1.0))
                if places[place]:
                    corrected.append(-log_softmax(wrong['correct'][s, place])[own[place]])
        want['discrimination'] += np.mean(told) / PAIRS
        want['correction'] += np.mean(corrected) / PAIRS
    got = {name: float(metrics[f'target/terms/{name}']) for name in TERMS}
    np.testing.assert_allclose([got[name] for name in TERMS], [want[name] for name in TERMS], rtol=2e-4)


def test_the_gradient_reaches_every_head_that_a_term_trains(stepped):
    state, metrics = stepped
    trace = state.members['target'].optimizer.trace
    for module in ('rank_head', 'mlm_head', 'discriminate_head', 'correct_head', 'pooler', 'regions', 'bert'):
        assert optax.tree.norm(trace[module]) > 1e-6, module
    assert metrics['finite']


def test_a_static_generator_writes_for_another_model_and_stays_as_it_is(params, stepped):
    still = MemberState(jax.tree.map(lambda x: 2 * x, params), {})
    terms = {name: TERMS[name] for name in ('ranking', 'synthetic')}
    state, metrics = make_step(terms, generator=Member(MODEL, frozen))(state_of(params, generator=still), make_batch())
    jax.tree.map(np.testing.assert_array_equal, state.members['generator'].params, still.params)
    _, alone = stepped
    np.testing.assert_allclose(metrics['target/terms/ranking'], alone['target/terms/ranking'], rtol=1e-5)
    assert abs(metrics['target/terms/synthetic'] - alone['target/terms/synthetic']) > 1e-4


def test_without_any_sentence_left_nothing_is_learned_from_them():
    scores = ShortlistScores(jnp.array([[0.5, 0.9], [0.5, 0.9]]), jnp.array([[False], [True]]))

    def loss(values):
        one = scores.replace(scores=values).ranking()
        return jnp.sum(HINGES(one.scores, one.positives, one.negatives))

    value, slope = jax.value_and_grad(loss)(scores.scores)
    np.testing.assert_allclose(value, 0.6, rtol=1e-6)
    np.testing.assert_allclose(slope, [[0, 0], [-1, 1]], atol=1e-6)
    assert float(difficulty(scores.replace(chosen=jnp.zeros((2, 1), bool)).ranking())['gap']) == 0


def test_difficulty_is_a_histogram_of_the_wrong_less_the_true():
    scores = ShortlistScores(jnp.array([[0.5, 0.83, 0.12, 0.45]]), jnp.array([[True, True, False]]))
    told = jax.device_get(difficulty(scores.ranking()))
    np.testing.assert_allclose([told['count'], told['gap']], [2, (0.33 - 0.38) / 2], atol=1e-6)
    shares = [told[f'share_{n:02}'] for n in range(BINS)]
    np.testing.assert_allclose(np.flatnonzero(shares), [6, 13])  # -0.38 and 0.33 of [-1, 1] in twentieths
    np.testing.assert_allclose([shares[6], shares[13]], 0.5)


def test_synthesis_refuses_what_means_nothing():
    with pytest.raises(UserError, match=r"'synthesis.temperature' is 0; it must be above 0"):
        dataclasses.replace(SYNTHESIS, temperature=0)
    with pytest.raises(UserError, match=r"'synthesis.num_hard' is 0; it must be at least 1"):
        dataclasses.replace(SYNTHESIS, num_hard=0)


def test_memory_is_that_of_a_tile_whatever_the_number_of_images(params, monkeypatch):
    """A tile holds one image's sentences: twelve images take the memory of two, but for inputs and results."""
    monkeypatch.setattr(parallel, 'tile_floats', lambda: 6 * 11 * 512)

    def memory(images):
        def loss(params, batch, synthetic):
            def score(matcher):
                shown = matcher.encode_image(batch.images, train=True)
                return score_synthetic(matcher, shown, batch, synthetic, {})[0].scores

            return jnp.sum(MODEL.apply({'params': params}, method=score, rngs={'dropout': jax.random.key(0)}))

        batch = jax.tree.map(lambda x: np.resize(x, (images, *x.shape[1:])) if x.ndim else x, make_batch())
        ids = np.resize(batch.texts.ids[:, None], (images, SYNTHESIS.num_hard, LENGTH))
        synthetic = Synthetic(ids, ids > 0, np.ones(ids.shape[:2], bool))
        compiled = jax.jit(jax.grad(loss)).lower(params, batch, synthetic).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(12) < 1.2 * memory(2)
