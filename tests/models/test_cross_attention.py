"""Cross-attention models against loops over pairs in float64, in value and in gradient."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers import alignment
from jitm.layers.normalization import l2_normalize
from jitm.models import bfan, gsmn, imram, scan, sgraf
from jitm.models.make import model_keys
from jitm.types import Elements
from tests.models import cross_attention_oracle as oracle

DIM, SIZE, SLOTS, BLOCKS = 6, 4, 4, 3
SIDES = {'embed_dim': DIM, 'image': nn.Dense(1), 'text': nn.Dense(1)}
ATTENTION = {'lambda_softmax': 9.0}
PARAMS = oracle.random_params(np.random.default_rng(3), DIM, SIZE, SLOTS)
MEMORIES = oracle.random_memories(np.random.default_rng(7), DIM)
READOUTS = oracle.random_readouts(np.random.default_rng(8), BLOCKS)


def make_scan(**changes):
    options = {'direction': 't2i', 'aggregation': 'Mean', 'lambda_lse': 6.0} | ATTENTION | changes
    return scan.SCAN(**SIDES | options)


def make_imram(direction, steps=3):
    return imram.IMRAM(**SIDES | ATTENTION, direction=direction, steps=steps)


def make_sgraf(reasoning, wholes=True, **changes):
    options = {'activation': 'sigmoid', 'reasoning': reasoning} | ATTENTION | changes
    image_whole = alignment.SelfAttention(0.0, SLOTS) if wholes else None
    text_whole = alignment.SelfAttention(0.0, None) if wholes else None
    options |= {'image_whole': image_whole, 'text_whole': text_whole}
    return sgraf.SGRAF(alignment_dim=SIZE, **SIDES | options)


def layers(params, prefix, names):
    """The parameters of some layers of the oracle, by our names."""
    found = {name: f'{prefix}_{theirs}/' for name, theirs in names.items()}
    return {
        name: {
            key.removeprefix(start): jnp.asarray(x, jnp.float32) for key, x in params.items() if key.startswith(start)
        }
        for name, start in found.items()
    }


def layer(name, kind='kernel'):
    if kind == 'norm':
        return {key: jnp.asarray(PARAMS[f'{name}/{key}'], jnp.float32) for key in ('scale', 'bias')}
    if kind == 'statistics':
        return {key: jnp.asarray(PARAMS[f'{name}/{key}'], jnp.float32) for key in ('mean', 'variance')}
    return {key: jnp.asarray(PARAMS[f'{name}/{key}'], jnp.float32) for key in ('kernel', 'bias')}


def scalars(tree):
    return {key: value[0] for key, value in tree.items()}


def whole(side):
    return {'local': layer(f'{side}_local'), 'whole': layer(f'{side}_global'), 'scores': layer(f'{side}_common')}


def variables_of(model):
    """The oracle's parameters as ours."""
    if isinstance(model, imram.IMRAM):
        names = {'gate': 'gate', 'linear': 'output'}
        directions = imram.DIRECTIONS[model.direction] if model.steps > 1 else ()
        return {'params': {f'memory_{direction}': layers(MEMORIES, direction, names) for direction in directions}}
    if isinstance(model, gsmn.GSMN):
        names = {name: name for name in ('kernels', 'hidden', 'score')}
        return {'params': {direction: layers(READOUTS, direction, names) for direction in ('t2i', 'i2t')}}
    if not isinstance(model, sgraf.SGRAF):
        return {}
    params = {'local': {'linear': layer('local_alignment')}, 'score': layer('score')}
    statistics = {}
    if model.image_whole is not None:
        norms = {'local_norm': 'image_local_norm', 'whole_norm': 'image_global_norm'}
        params['image_whole'] = whole('image') | {ours: layer(name, 'norm') for ours, name in norms.items()}
        statistics['image_whole'] = {ours: layer(name, 'statistics') for ours, name in norms.items()}
        params |= {'text_whole': whole('text'), 'whole': {'linear': layer('global_alignment')}}
    if isinstance(model.reasoning, alignment.GraphReasoning):
        params['reasoning'] = {}
        for n in range(3):
            query, key = layer(f'graph_{n}_query'), layer(f'graph_{n}_key')
            params['reasoning'] |= {
                f'query_{n}': query['kernel'],
                f'query_bias_{n}': query['bias'],
                f'key_{n}': key['kernel'],
                f'graph_{n}': layer(f'graph_{n}_update'),
            }
    if isinstance(model.reasoning, alignment.AttentionFiltration):
        params['reasoning'] = {'relevance': layer('filter')} | scalars(layer('filter_norm', 'norm'))
        statistics['reasoning'] = scalars(layer('filter_norm', 'statistics'))
    return {'params': params, 'batch_stats': statistics}


def make_elements(counts, length, seed):
    """Unit vectors, zero where padded."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < np.array(counts)[:, None]
    vectors = rng.normal(size=(*mask.shape, DIM)) * mask[..., None]
    return Elements(np.asarray(l2_normalize(jnp.asarray(vectors, jnp.float32))), mask)


IMAGES, TEXTS = make_elements([3, 4, 2], 4, seed=0), make_elements([5, 3, 4], 6, seed=1)


def with_wholes(model, images, texts, train=False):
    if not isinstance(model, sgraf.SGRAF) or model.image_whole is None:
        return images, texts
    image = model.image_whole(images.vectors, images.mask, train)
    return images.replace(whole=image), texts.replace(whole=model.text_whole(texts.vectors, texts.mask, train))


def similarity(model, images=IMAGES, texts=TEXTS, train=False):
    """Scores from regions and words, with the wholes made of them as in evaluation."""

    def call(model, images, texts):
        return model.similarity(*with_wholes(model, images, texts), train)

    return model.apply(variables_of(model), images, texts, method=call)


def real(elements, vectors=None):
    """The real elements of each item, float64."""
    vectors = elements.vectors if vectors is None else vectors
    return [np.asarray(v[m], np.float64) for v, m in zip(vectors, elements.mask, strict=True)]


def scan_oracle(**options):
    return lambda V, W: oracle.scan_score(V, W, **options)


def imram_oracle(*directions, steps=3):
    return lambda V, W: oracle.imram_score(
        V, W, MEMORIES, directions=directions, steps=steps, softmax_temperature=ATTENTION['lambda_softmax']
    )


CASES = {
    'scan_t2i_avg': (make_scan(), scan_oracle(direction='t2i', softmax_temperature=9.0)),
    'scan_t2i_lse': (
        make_scan(aggregation='LogSumExp'),
        scan_oracle(direction='t2i', softmax_temperature=9.0, lse_temperature=6.0),
    ),
    'scan_i2t_avg': (
        make_scan(direction='i2t', lambda_softmax=4.0),
        scan_oracle(direction='i2t', softmax_temperature=4.0),
    ),
    'bfan_equal': (
        bfan.BFAN(**SIDES | ATTENTION | {'focal': 'equal', 'lambda_softmax': 20.0}),
        lambda V, W: oracle.bfan_score(V, W, focal='equal'),
    ),
    'bfan_prob': (
        bfan.BFAN(**SIDES | ATTENTION | {'focal': 'prob', 'lambda_softmax': 20.0}),
        lambda V, W: oracle.bfan_score(V, W, focal='prob'),
    ),
    'sgr': (make_sgraf(alignment.GraphReasoning(3)), lambda V, W: oracle.sgr_score(V, W, PARAMS)),
    'saf': (make_sgraf(alignment.AttentionFiltration()), lambda V, W: oracle.saf_score(V, W, PARAMS)),
    'dbl': (
        make_sgraf(alignment.Mean(), wholes=False, activation='tanh'),
        lambda V, W: oracle.dbl_score(V, W, PARAMS),
    ),
    'imram_t2i': (make_imram('t2i'), imram_oracle('t2i')),
    'imram_i2t': (make_imram('i2t'), imram_oracle('i2t')),
    'imram_both': (make_imram('both'), imram_oracle('t2i', 'i2t')),
    'imram_one_step': (make_imram('i2t', steps=1), imram_oracle('i2t', steps=1)),
    'gsmn': (
        gsmn.GSMN(**SIDES | ATTENTION, blocks=BLOCKS),
        lambda V, W: oracle.gsmn_score(V, W, READOUTS, blocks=BLOCKS, softmax_temperature=ATTENTION['lambda_softmax']),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_scores_are_those_of_a_loop_over_pairs(name):
    model, score = CASES[name]
    want = oracle.score_matrix(score, real(IMAGES), real(TEXTS))
    assert np.ptp(want) > 1e-3
    np.testing.assert_allclose(similarity(model), want, atol=1e-5)
    if name != 'saf':
        np.testing.assert_allclose(similarity(model, train=True), want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    ['scan_t2i_lse', 'scan_i2t_avg', 'bfan_equal', 'bfan_prob', 'sgr', 'saf', 'dbl', 'imram_t2i', 'imram_i2t', 'gsmn'],
)
def test_gradients_are_those_of_a_loop_over_pairs(name):
    model, score = CASES[name]
    images, texts = make_elements([2, 3], 3, seed=4), make_elements([3, 2], 3, seed=5)
    weights = np.random.default_rng(6).normal(size=(2, 2))

    def ours(regions, words):
        sides = images.replace(vectors=regions), texts.replace(vectors=words)
        return jnp.sum(weights * similarity(model, *sides, train=name != 'saf'))

    def theirs(regions, words):
        return np.sum(weights * oracle.score_matrix(score, real(images, regions), real(texts, words)))

    got = jax.grad(ours, (0, 1))(jnp.asarray(images.vectors), jnp.asarray(texts.vectors))
    assert_gradients_along_the_sphere(got, theirs, images, texts)


@pytest.mark.slow
def test_saf_gradients_in_training_equal_a_loop():
    images, texts = make_elements([2, 3], 3, seed=4), make_elements([3, 2], 3, seed=5)
    model = make_sgraf(alignment.AttentionFiltration())
    weights = np.random.default_rng(6).normal(size=(2, 2))

    def ours(regions, words):
        sides = images.replace(vectors=regions), texts.replace(vectors=words)
        return jnp.sum(weights * saf_in_training(model, *sides)[0])

    def theirs(regions, words):
        return np.sum(weights * oracle.saf_batch(real(images, regions), real(texts, words), PARAMS)[0])

    got = jax.grad(ours, (0, 1))(jnp.asarray(images.vectors), jnp.asarray(texts.vectors))
    assert_gradients_along_the_sphere(got, theirs, images, texts)


def assert_gradients_along_the_sphere(got, theirs, images, texts):
    """Of unit vectors, which SCAN and BFAN take for granted."""
    want = oracle.numerical_gradient(theirs, [images.vectors, texts.vectors])
    for g, w, elements in zip(got, want, (images, texts), strict=True):
        vectors = np.asarray(elements.vectors, np.float64)
        g, w = (x - np.sum(x * vectors, axis=-1, keepdims=True) * vectors for x in (np.asarray(g, np.float64), w))
        assert np.abs(w).max() > 1e-2
        np.testing.assert_allclose(g, w, rtol=5e-5, atol=1e-4)


def saf_in_training(model, images, texts):
    """Scores, and the batch statistics after this batch."""

    def call(model, images, texts):
        return model.similarity(*with_wholes(model, images, texts, train=True), train=True)

    return model.apply(variables_of(model), images, texts, method=call, mutable=['batch_stats'])


@pytest.mark.slow
def test_saf_normalises_each_text_by_its_own_alignments_in_training():
    scores, changed = saf_in_training(make_sgraf(alignment.AttentionFiltration()), IMAGES, TEXTS)
    longest_first = np.argsort(-TEXTS.mask.sum(1))  # the order in which the released loader has them
    texts = [real(TEXTS)[n] for n in longest_first]
    want, mean, variance = oracle.saf_batch(real(IMAGES), texts, PARAMS)
    np.testing.assert_allclose(scores[:, longest_first], want, atol=1e-5)
    statistics = changed['batch_stats']
    np.testing.assert_allclose(statistics['reasoning']['mean'], mean[0], rtol=1e-5)
    np.testing.assert_allclose(statistics['reasoning']['variance'], variance[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('direction', ['t2i', 'i2t'])
def test_imram_with_one_step_is_scan(direction):
    np.testing.assert_array_equal(
        similarity(make_imram(direction, steps=1)), similarity(make_scan(direction=direction))
    )


@pytest.mark.slow
def test_full_imram_is_the_sum_of_its_directions():
    both, t2i, i2t = (similarity(make_imram(direction)) for direction in ('both', 't2i', 'i2t'))
    np.testing.assert_allclose(both, t2i + i2t, atol=1e-6)


@pytest.mark.slow
def test_attention_of_imram_is_the_mean_over_its_steps():
    model, options = make_imram('both'), {'steps': 3, 'softmax_temperature': ATTENTION['lambda_softmax']}
    got = model.apply(variables_of(model), IMAGES, TEXTS, method='attention_block')
    for n, (V, W) in enumerate(zip(real(IMAGES), real(TEXTS), strict=True)):
        words = np.mean(oracle.imram_attention(W, V, MEMORIES, 't2i', **options), axis=0)
        regions = np.mean(oracle.imram_attention(V, W, MEMORIES, 'i2t', **options), axis=0)
        for direction, want in (('t2i', words), ('i2t', regions.T)):
            np.testing.assert_allclose(got[direction][n, n, : len(W), : len(V)], want, atol=1e-5)


@pytest.mark.parametrize('name', ['scan_t2i_avg', 'imram_t2i', 'imram_i2t', 'imram_both', 'imram_one_step', 'gsmn'])
def test_floats_per_pair_is_the_size_of_the_largest_array(name):
    model, _ = CASES[name]
    images, texts = make_elements([4] * 7, 4, seed=0), make_elements([6] * 7, 6, seed=1)
    traced = jax.make_jaxpr(lambda *sides: model.apply(variables_of(model), *sides, method='score_block'))(
        images, texts
    )
    sizes = [math.prod(map(int, shape.split(','))) for shape in re.findall(r'f32\[([\d,]+)\]', str(traced))]
    assert max(sizes) == 7 * 7 * model.floats_per_pair(images, texts)


@pytest.mark.slow
def test_zero_rows_have_no_nan():
    empty = IMAGES.replace(vectors=np.zeros_like(IMAGES.vectors))
    for name in ('scan_t2i_lse', 'scan_i2t_avg', 'bfan_equal', 'bfan_prob', 'dbl', 'imram_both', 'gsmn'):
        model, _ = CASES[name]

        def total(images, texts, model=model):
            return jnp.sum(similarity(model, images, texts))

        for images, texts in ((empty, TEXTS), (IMAGES, TEXTS.replace(vectors=np.zeros_like(TEXTS.vectors)))):
            value, gradients = jax.value_and_grad(total, (0, 1), allow_int=True)(images, texts)
            assert np.isfinite(value)
            for gradient in gradients:
                assert np.isfinite(gradient.vectors).all(), name


@pytest.mark.slow
def test_half_precision_inputs_give_float32_scores():
    def half(elements):
        return jax.tree.map(lambda x: x if x.dtype == bool else x.astype(jnp.bfloat16), elements)

    for name in ('scan_t2i_lse', 'bfan_equal', 'sgr', 'dbl', 'imram_both', 'gsmn'):
        model, _ = CASES[name]
        inputs = model.apply(variables_of(model), IMAGES, TEXTS, method=with_wholes)
        want = model.apply(variables_of(model), *inputs, method='similarity')
        got = model.apply(variables_of(model), *map(half, inputs), method='similarity')
        assert got.dtype == want.dtype == jnp.float32
        assert 0 < np.abs(got - want).max() < 0.05, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (make_scan(direction='both'), r"'model.direction' is 'both'; take one of t2i, i2t"),
        (make_scan(aggregation='Median'), r"'model.aggregation' is 'Median'; take one of LogSumExp"),
        (bfan.BFAN(**SIDES | ATTENTION, focal='hard'), r"'model.focal' is 'hard'; take one of equal, prob"),
        (make_imram('text'), r"'model.direction' is 'text'; take one of both, t2i, i2t"),
        (gsmn.GSMN(**SIDES | ATTENTION, blocks=4), "'model.blocks' is 4, which does not divide embed_dim, 6"),
        (make_sgraf(alignment.Mean(), activation='relu'), r"'model.activation' is 'relu'; take one of sigmoid"),
        (
            make_sgraf(alignment.Mean()).clone(text_whole=None),
            "'model.image_whole' and text_whole must both be given, or neither",
        ),
    ],
)
def test_wrong_arguments_are_refused(model, message):
    with pytest.raises(UserError, match=message), model_keys():
        model.init(jax.random.key(0), IMAGES, TEXTS, method='similarity')
