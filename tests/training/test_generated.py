"""The training step with synthetic negative captions: TAGS and TAGS-DC (Fan et al., 2022)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.devices import policy
from jitm.losses import ranking, tokens
from jitm.models.uniter import UNITER
from jitm.synthesis import refill
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.training.members import Frozen, Gradient, Member, MemberState
from jitm.training.objective import RankingTerm, TokenTerm, token_terms
from jitm.training.source import together
from jitm.training.sources.generated import BINS, difficulty, generate_captions
from jitm.training.sources.masked import mask_captions
from jitm.training.step import TrainState
from jitm.types import Batch, Masked, Ranking, Texts
from tests.support.matchers import VOCABULARY, make_inputs, perturb
from tests.training.models import compile_step, on_one_device, shortlist_source

MODEL = UNITER(VOCABULARY, 'tiny', dropout=0.0, dtype='float32', heads=('mlm', 'discriminate', 'correct'))
PAIRS, VIEWS, LENGTH = 2, 3, 7
MASK = VOCABULARY - 1
SYNTHESIS = Synthesis(generator='target', num_samples=4, temperature=1.5, num_hard=5)
EQUAL = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}
HINGES = functools.partial(ranking.mean_of_hinges, margin=0.2)
TERMS = {
    'ranking': RankingTerm(loss=HINGES, **EQUAL),
    'synthetic': RankingTerm(loss=HINGES, **EQUAL, rankings=('generated',)),
    'masked': TokenTerm(loss=tokens.masked_language_modeling, **EQUAL, predictions='masked_language_modeling'),
    'discrimination': TokenTerm(
        loss=functools.partial(tokens.word_discrimination, match_weight=0.11),
        **EQUAL,
        predictions='word_discrimination',
    ),
    'correction': TokenTerm(loss=tokens.word_correction, **EQUAL, predictions='word_correction'),
}


def make_batch():
    images, _ = make_inputs(PAIRS, padded=False)
    texts = Texts(np.zeros((PAIRS, LENGTH), np.int32), np.array([7, 4], np.int32))
    rng = np.random.default_rng(0)
    ids = np.where(texts.mask, rng.integers(1, MASK, (PAIRS, LENGTH)), 0).astype(np.int32)
    labelled = np.zeros((PAIRS, VIEWS, LENGTH), bool)
    labelled[0, 0, 1:3] = labelled[0, 1, 4] = labelled[0, 2, 2] = labelled[1, :, 1] = labelled[1, 2, 2] = True
    masked = Masked(np.where(labelled, MASK, ids[:, None]).astype(np.int32), labelled)
    known = np.full((PAIRS, 8), -1, np.int32)
    for row, words in zip(known, ids, strict=True):
        row[: len(np.unique(words[words > 0]))] = np.unique(words[words > 0])
    texts = texts.replace(ids=ids)
    return Batch(np.int32(0), images, texts, np.array([4, 6], np.int32), drawn={'masked': (masked, known)})


@pytest.fixture(scope='module')
def params():
    batch = make_batch()
    return perturb(jax.jit(MODEL.init)(jax.random.key(0), batch.images, batch.texts)['params'])


@pytest.fixture(scope='module')
def generated(params):
    """The captions that the model generates for itself, and the random keys."""
    variables, keys = {'params': params}, jax.random.split(jax.random.key(3), PAIRS)
    choose = jax.jit(lambda batch: SYNTHESIS.choose(MODEL, variables, (MODEL, variables), batch, keys))
    return jax.device_get(choose(make_batch())), keys


@jax.jit
def read(params, images, ids, lengths):
    """The outputs of every head for image n with text n."""

    def heads(matcher):
        texts = matcher.encode_text(Texts(ids, lengths))
        return matcher.read_pairs(matcher.encode_image(images), texts, ('rank', 'mlm', 'discriminate', 'correct'))

    return MODEL.apply({'params': params}, method=heads)


def read_pairs(params, pairs):
    """The same for pairs (image, ids, length), all with one compilation."""
    batch, most = make_batch(), VIEWS * SYNTHESIS.num_samples
    rows, ids, lengths = zip(*(list(pairs) + [pairs[0]] * (most - len(pairs))), strict=True)
    images = jax.tree.map(lambda x: x[list(rows)], batch.images)
    outputs = jax.device_get(read(params, images, np.array(ids, np.int32), np.array(lengths, np.int32)))
    return {head: values[: len(pairs)].astype(np.float64) for head, values in outputs.items()}


def read_one(params, n, ids):
    """The outputs of every head for image n with captions as long as its own."""
    return read_pairs(params, [(n, caption, make_batch().texts.lengths[n]) for caption in ids])


@pytest.mark.slow
def test_hardest_new_captions_are_kept(params, generated):
    synthetic, keys = generated
    batch = make_batch()
    for n, row_key in enumerate(keys):
        masked = jax.tree.map(lambda x, n=n: x[n], batch.drawn['masked'][0])
        logits = read_one(params, n, masked.ids)['mlm'].astype(np.float32)
        samples = np.asarray(refill.refill(logits, masked, SYNTHESIS.num_samples, SYNTHESIS.temperature, row_key))
        own, known = batch.texts.ids[n].tolist(), set(batch.drawn['masked'][1][n].tolist())
        allowed = {}
        for k, caption in enumerate(samples.tolist()):
            changed = {new for new, old in zip(caption, own, strict=True) if new != old}
            if changed - known:
                allowed.setdefault(tuple(caption), k)
        scores = dict(zip(allowed, read_one(params, n, list(allowed))['rank'], strict=True))
        best = sorted(scores, key=scores.get, reverse=True)
        kept = synthetic.ids[n][synthetic.valid[n]]
        assert [tuple(row) for row in kept.tolist()] == best[: SYNTHESIS.num_hard]
        for caption, refilled in zip(kept, synthetic.refilled[n], strict=False):
            np.testing.assert_array_equal(refilled, masked.labelled[allowed[tuple(caption.tolist())] // 4])
    assert synthetic.valid.any()


def make_step(terms=TERMS, **members):
    target = Member(rule=Gradient(), model=MODEL, optimizer=optax.trace(0.0))
    synthesis = dataclasses.replace(SYNTHESIS, generator='generator' if members else 'target')
    tokens = token_terms(terms)
    masked = {name: tokens.pop(name) for name in tokens.keys() & {'masked'}}
    sources = shortlist_source(0, 1), mask_captions(None, masked), generate_captions(synthesis, tokens)
    members = {'target': target, **members}
    return compile_step(members=members, terms=terms, source=together(*sources), seed=0, steps_per_epoch=2, epochs=1)


def state_of(params, **others):
    target = MemberState(params, {}, optax.trace(0.0).init(params))
    return TrainState(jnp.int32(0), {'target': target, **others})


@pytest.fixture(scope='module')
def stepped(params):
    return make_step()(state_of(params), make_batch())


def hinges(positive, negatives):
    return np.mean(np.maximum(0.2 + negatives - positive, 0)) if len(negatives) else 0.0


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.slow
def test_terms_equal_their_definition(params, stepped):
    """Each loss by loops over its definition, from the captions that the step has generated."""
    _, metrics = stepped
    batch = make_batch()
    key = jax.random.fold_in(jax.random.key(0), 0)
    key = jax.random.fold_in(jax.random.fold_in(key, 0), 1)  # of the model, of its captions
    variables, keys = {'params': params}, jax.random.split(key, PAIRS)
    choose = jax.jit(lambda batch: SYNTHESIS.choose(MODEL, variables, (MODEL, variables), batch, keys))
    synthetic = jax.device_get(choose(batch))
    want, (masked, _) = dict.fromkeys(TERMS, 0.0), batch.drawn['masked']
    for n in range(PAIRS):
        own, length = batch.texts.ids[n], batch.texts.lengths[n]
        valid = synthetic.valid[n]
        negatives = read_one(params, n, synthetic.ids[n][valid])
        positive = sigmoid(read_one(params, n, own[None])['rank'][0])
        want['synthetic'] += hinges(positive, sigmoid(negatives['rank'])) / PAIRS
        other = 1 - n, batch.texts.ids[1 - n], batch.texts.lengths[1 - n]
        for pair in ((n, *other[1:]), (1 - n, own, length)):
            want['ranking'] += hinges(positive, sigmoid(read_pairs(params, [pair])['rank'])) / PAIRS
        views = read_one(params, n, masked.ids[n])['mlm']
        costs = [-log_softmax(views[k, t])[own[t]] for k, t in np.argwhere(masked.labelled[n]).tolist()]
        want['masked'] += np.mean(costs) / PAIRS
        discriminated, corrected = [], []
        for s in range(valid.sum()):
            ids, refilled = synthetic.ids[n][s], synthetic.refilled[n][s]
            for t in range(length):
                match = int(ids[t] == own[t])
                cost = -log_softmax(negatives['discriminate'][s, t])[match]
                discriminated.append(cost * (0.11 if match else 1.0))
                if refilled[t]:
                    corrected.append(-log_softmax(negatives['correct'][s, t])[own[t]])
        want['discrimination'] += np.mean(discriminated) / PAIRS
        want['correction'] += np.mean(corrected) / PAIRS
    got = {name: float(metrics[f'target/terms/{name}']) for name in TERMS}
    np.testing.assert_allclose([got[name] for name in TERMS], [want[name] for name in TERMS], rtol=2e-4)


@pytest.mark.slow
def test_gradient_reaches_every_head(stepped):
    state, metrics = stepped
    trace = state.members['target'].optimizer.trace
    for module in ('rank_head', 'mlm_head', 'discriminate_head', 'correct_head', 'pooler', 'regions', 'bert'):
        assert optax.tree.norm(trace[module]) > 1e-6, module
    assert metrics['finite']


@pytest.mark.slow
def test_static_generator_is_constant(params, stepped):
    fixed = MemberState(jax.tree.map(lambda x: 2 * x, params), {})
    terms = {name: TERMS[name] for name in ('ranking', 'synthetic')}
    state, metrics = make_step(terms, generator=Member(rule=Frozen(), model=MODEL))(
        state_of(params, generator=fixed), make_batch()
    )
    jax.tree.map(np.testing.assert_array_equal, state.members['generator'].params, fixed.params)
    _, alone = stepped
    np.testing.assert_allclose(metrics['target/terms/ranking'], alone['target/terms/ranking'], rtol=1e-5)
    assert abs(metrics['target/terms/synthetic'] - alone['target/terms/synthetic']) > 1e-4


def test_difficulty_is_a_histogram_of_score_differences():
    ranked = Ranking.from_list(jnp.array([[0.5, 0.83, 0.12, 0.45]]), jnp.array([[True, True, False]]))
    metrics = jax.device_get(difficulty(ranked))
    np.testing.assert_allclose([metrics['count'], metrics['gap']], [2, (0.33 - 0.38) / 2], atol=1e-6)
    shares = [metrics[f'share_{n:02}'] for n in range(BINS)]
    np.testing.assert_allclose(np.flatnonzero(shares), [6, 13])  # -0.38 and 0.33 of [-1, 1] in twentieths
    np.testing.assert_allclose([shares[6], shares[13]], 0.5)
    assert difficulty(Ranking.from_list(ranked.scores, jnp.zeros((1, 3), bool)))['gap'] == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(params, monkeypatch):
    """A tile holds one image's captions: twelve images take the memory of two, apart from inputs and results."""
    monkeypatch.setattr(policy, 'tile_floats', lambda: 6 * 11 * 512)
    source = generate_captions(SYNTHESIS, {})

    def memory(images):
        def loss(params, batch, synthetic):
            def score(matcher):
                images = matcher.encode_image(batch.images, train=True)
                return source.score(matcher, images, None, batch, synthetic, True)[0]['generated'].scores

            return jnp.sum(MODEL.apply({'params': params}, method=score, rngs={'dropout': jax.random.key(0)}))

        batch = jax.tree.map(lambda x: np.resize(x, (images, *x.shape[1:])) if x.ndim else x, make_batch())
        ids = np.resize(batch.texts.ids[:, None], (images, SYNTHESIS.num_hard, LENGTH))
        synthetic = Synthetic(ids, ids > 0, np.ones(ids.shape[:2], bool))
        compiled = jax.jit(on_one_device(jax.grad(loss))).lower(params, batch, synthetic).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(12) < 1.2 * memory(2)
