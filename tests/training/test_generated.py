"""The training step with synthetic negative captions: TAGS and TAGS-DC (Fan et al., 2022)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.devices import policy
from jitm.synthesis import refill
from jitm.synthesis.generator import Synthetic
from jitm.training.members import Frozen, Gradient, Member, MemberState
from jitm.training.objective import token_terms
from jitm.training.source import together
from jitm.training.sources.generated import BINS, difficulty, generate_captions
from jitm.training.sources.masked import mask_captions
from jitm.training.step import TrainState
from jitm.types import Ranking, Texts
from tests.losses import formulas
from tests.support.matchers import perturb
from tests.support.steps import compile_step, on_one_device, shortlist_source
from tests.support.tags import LENGTH, MODEL, PAIRS, SYNTHESIS, TERMS, VIEWS, make_batch


@pytest.fixture(scope='module')
def params():
    batch = make_batch()
    return perturb(jax.jit(MODEL.init)(jax.random.key(0), batch.images, batch.texts)['params'])


@pytest.fixture(scope='module')
def choose(params):
    """The captions that the model generates for itself with a random key for each pair."""
    variables = {'params': params}
    choose = jax.jit(lambda batch, keys: SYNTHESIS.choose(MODEL, variables, (MODEL, variables), batch, keys))
    return lambda keys: jax.device_get(choose(make_batch(), keys))


@jax.jit
def read(params, images, texts):
    """The outputs of every head for image n with text n."""

    def heads(matcher):
        encoded = matcher.encode_image(images), matcher.encode_text(texts)
        return matcher.read_pairs(*encoded, ('rank', 'mlm', 'discriminate', 'correct'))

    return MODEL.apply({'params': params}, method=heads)


def read_captions(params, n, ids, owner=None):
    """The outputs of every head for image n with captions as long as that of a pair, all with one compilation."""
    batch = make_batch()
    count = VIEWS * SYNTHESIS.num_samples
    rows = np.resize(np.asarray(ids, np.int32), (count, LENGTH))
    length = batch.texts.lengths[n if owner is None else owner]
    images = jax.tree.map(lambda x: np.repeat(x[n : n + 1], count, axis=0), batch.images)
    outputs = jax.device_get(read(params, images, Texts(rows, np.full(count, length))))
    return {head: values[: len(ids)].astype(np.float64) for head, values in outputs.items()}


@pytest.mark.slow
def test_hardest_new_captions_are_kept(params, choose):
    keys = jax.random.split(jax.random.key(3), PAIRS)
    synthetic = choose(keys)
    batch = make_batch()
    all_masked, words_of_images = batch.drawn['masked']
    for n, key in enumerate(keys):
        masked = jax.tree.map(lambda x, n=n: x[n], all_masked)
        logits = read_captions(params, n, masked.ids)['mlm'].astype(np.float32)
        samples = np.asarray(refill.refill(logits, masked, SYNTHESIS.num_samples, SYNTHESIS.temperature, key))
        sample_of = {}
        for k, caption in enumerate(samples):
            new = set(caption[caption != batch.texts.ids[n]].tolist())
            if new - set(words_of_images[n].tolist()):
                sample_of.setdefault(tuple(caption.tolist()), k)
        scores = dict(zip(sample_of, read_captions(params, n, [*sample_of])['rank'], strict=True))
        hardest = sorted(scores, key=scores.get, reverse=True)[: SYNTHESIS.num_hard]
        assert list(map(tuple, synthetic.ids[n][synthetic.valid[n]].tolist())) == hardest
        for caption, refilled in zip(hardest, synthetic.refilled[n], strict=False):
            np.testing.assert_array_equal(refilled, masked.labelled[sample_of[caption] // SYNTHESIS.num_samples])
    assert synthetic.valid.any()


def make_step(terms=TERMS, **members):
    target = Member(rule=Gradient(), model=MODEL, optimizer=optax.trace(0.0))
    synthesis = dataclasses.replace(SYNTHESIS, generator='generator' if members else 'target')
    of_words = token_terms(terms)
    masked = {name: of_words.pop(name) for name in of_words.keys() & {'masked'}}
    sources = shortlist_source(0, 1), mask_captions(None, masked), generate_captions(synthesis, of_words)
    parts = {'members': {'target': target, **members}, 'terms': terms, 'source': together(*sources)}
    return compile_step(**parts, seed=0, steps_per_epoch=2, epochs=1)


def state_of(params, **members):
    target = MemberState(params, {}, optax.trace(0.0).init(params))
    return TrainState(jnp.int32(0), {'target': target, **members})


@pytest.fixture(scope='module')
def stepped(params):
    return make_step()(state_of(params), make_batch())


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


@pytest.mark.slow
def test_terms_equal_their_definition(params, choose, stepped):
    """Each loss by its formula, from the captions that the step has generated."""
    _, metrics = stepped
    batch = make_batch()
    key = jax.random.fold_in(jax.random.key(0), 0)
    key = jax.random.fold_in(jax.random.fold_in(key, 0), 1)  # of the model, of its captions
    synthetic = choose(jax.random.split(key, PAIRS))
    masked, _ = batch.drawn['masked']
    values = {name: [] for name in TERMS}

    def hinges(positive, negatives):
        row = formulas.Row(list(sigmoid(positive)), list(sigmoid(negatives)))
        return formulas.mean_of_hinges(row, 0.2)

    for n, caption in enumerate(batch.texts.ids):
        ids = synthetic.ids[n][synthetic.valid[n]]
        refilled = synthetic.refilled[n][synthetic.valid[n]]
        negatives = read_captions(params, n, ids)
        positive = read_captions(params, n, [caption])['rank']
        values['synthetic'].append(hinges(positive, negatives['rank']))
        of_image = read_captions(params, n, batch.texts.ids[[1 - n]], owner=1 - n)['rank']
        of_caption = read_captions(params, 1 - n, [caption], owner=n)['rank']
        values['ranking'].append(hinges(positive, of_image) + hinges(positive, of_caption))
        views = read_captions(params, n, masked.ids[n])['mlm']
        words = [(views[k, t], caption[t]) for k, t in np.argwhere(masked.labelled[n])]
        values['masked'].append(formulas.masked_language_modeling(words))
        places = [*np.ndindex(len(ids), batch.texts.lengths[n])]
        words = [(negatives['discriminate'][s, t], int(ids[s, t] == caption[t])) for s, t in places]
        values['discrimination'].append(formulas.word_discrimination(words, 0.11))
        words = [(negatives['correct'][s, t], caption[t]) for s, t in places if refilled[s, t]]
        values['correction'].append(formulas.word_correction(words))
    for name, of_pairs in values.items():
        np.testing.assert_allclose(metrics[f'target/terms/{name}'], np.mean(of_pairs), rtol=2e-4, err_msg=name)


@pytest.mark.slow
def test_static_generator_is_constant(params, stepped):
    fixed = MemberState(jax.tree.map(lambda x: 2 * x, params), {})
    terms = {name: TERMS[name] for name in ('ranking', 'synthetic')}
    step = make_step(terms, generator=Member(rule=Frozen(), model=MODEL))
    state, metrics = step(state_of(params, generator=fixed), make_batch())
    jax.tree.map(np.testing.assert_array_equal, state.members['generator'].params, fixed.params)
    _, want = stepped
    np.testing.assert_allclose(metrics['target/terms/ranking'], want['target/terms/ranking'], rtol=1e-5)
    assert abs(metrics['target/terms/synthetic'] - want['target/terms/synthetic']) > 1e-4


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
