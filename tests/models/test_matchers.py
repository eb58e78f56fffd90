"""The conformance test every Matcher passes, and what is particular to each."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers import alignment, text, vision
from jitm.losses import tokens
from jitm.models import bfan, naaf, scan, sgraf, uniter, vse, vsrn
from jitm.types import Images, Texts

VOCABULARY = 12
ROUNDING = 3e-6  # of scores in float32
DIM = 8


def make_vse(mlp='none', bidirectional=False, vocab_size=VOCABULARY, bert=False, **changes):
    """VSE++ at a small size, or another model of its kind."""
    image = vision.RegionEncoder(DIM, mlp=mlp, output_norm=False, norm_padding=False, weight_norm=False)
    text_encoder = text.GRUEncoder(vocab_size, DIM, word_dim=5, bidirectional=bidirectional, dropout=0.0)
    if bert:
        text_encoder = text.BERTEncoder(vocab_size, DIM, 'tiny', dropout=0.1, output_dropout=0.1, dtype='float32')
    keywords = {'image_pooling': 'mean', 'text_pooling': 'last', 'normalize_images': True, 'absolute': False}
    return vse.VSE(DIM, image, text_encoder, **keywords | {'measure': 'cosine'} | changes)


ATTENTION = {'raw_feature_norm': 'clipped_l2norm', 'slope': 0.1, 'lambda_softmax': 9.0}


def sides(**changes):
    """Both sides of a model of SCAN's lineage."""
    image = vision.RegionEncoder(DIM, mlp='none', output_norm=False, norm_padding=False, weight_norm=False)
    return {'image': image, 'text': text.GRUEncoder(VOCABULARY, DIM, 5, bidirectional=True, dropout=0.0)} | changes


def make_scan(direction, aggregation, **changes):
    options = ATTENTION | {'direction': direction, 'aggregation': aggregation, 'lambda_lse': 6.0} | changes
    return scan.SCAN(DIM, **sides() | options)


def make_sgraf(reasoning, wholes=True, **changes):
    image_whole = alignment.SelfAttention(dropout=0.4, slots=7) if wholes else None
    text_whole = alignment.SelfAttention(dropout=0.4, slots=None) if wholes else None
    options = {'image_whole': image_whole, 'text_whole': text_whole, 'reasoning': reasoning}
    options |= ATTENTION | {'normalize_attended': True, 'activation': 'sigmoid'} | changes
    return sgraf.SGRAF(DIM, alignment_dim=6, **sides() | options)


NAAF = {'slope': 0.1, 'lambda_softmax': 20.0, 'smoothing': True, 'lambda_smoothing': 5.0}
NAAF |= {'alpha': 2.0, 'minimum_words': 4}
GPO = {'bidirectional': True, 'image_pooling': 'gpo', 'text_pooling': 'gpo'}
VSRN = {
    'vocab_size': VOCABULARY,
    'embed_dim': 8,
    'word_dim': 5,
    'graph_layers': 2,
    'normalize_before_graph': False,
    'batch_norm': True,
    'caption': True,
    'caption_dim': 6,
    'caption_dropout': 0.2,
    'caption_length': 5,
}
MATCHERS = {
    'vsepp': make_vse(),
    'vse0': make_vse(normalize_images=False),
    'order0': make_vse(absolute=True, measure='order'),
    'orderpp': make_vse(measure='order'),
    'vse_fc': make_vse(**GPO),
    'vse_mlp': make_vse('plain', **GPO),
    'rvse_mlp': make_vse('residual', **GPO),
    'vse_infty': make_vse('residual_on_input', **GPO),
    'esa': make_vse('residual_on_input', **GPO | {'image_pooling': 'esa', 'text_pooling': 'esa'}),
    'rvsepp': make_vse('residual', bert=True, **GPO),
    'max_pooling': make_vse(image_pooling='max', text_pooling='mean'),
    'vsrn_f30k': vsrn.VSRN(**VSRN),
    'scan_t2i': make_scan('t2i', 'LogSumExp'),
    'scan_i2t': make_scan('i2t', 'Mean', image=sides()['image'].clone(weight_norm=True)),
    'bfan_equal': bfan.BFAN(DIM, focal='equal', **sides() | ATTENTION),
    'bfan_prob': bfan.BFAN(DIM, focal='prob', **sides() | ATTENTION),
    'sgr': make_sgraf(alignment.GraphReasoning(3)),
    'saf': make_sgraf(alignment.AttentionFiltration()),
    'dbl': make_sgraf(alignment.Mean(normalize=True), wholes=False, activation='tanh'),
    'naaf': naaf.NAAF(DIM, **sides() | NAAF),
    'vsrn_coco': vsrn.VSRN(**VSRN | {'normalize_before_graph': True, 'batch_norm': False}),
    'uniter': uniter.UNITER(VOCABULARY, 'tiny', dropout=0.1, dtype='float32', heads=()),
}

# A softmax undoes a constant of all scores, and batch normalisation one of what it normalises.
WITHOUT_GRADIENT = (
    "['key']['bias']",
    "['scores']['bias']",
    "['linear_1']['bias']",
    "['image_whole']['whole']['bias']",
    "['relevance']['bias']",
)


def make_inputs(images=5, texts=5, seed=0):
    rng = np.random.default_rng(seed)
    regions = rng.normal(size=(images, 4, 6)).astype(np.float32)
    counts = rng.integers(1, 5, images).astype(np.int32)
    lengths = rng.integers(2, 7, texts).astype(np.int32)
    ids = np.where(np.arange(7) < lengths[:, None], rng.integers(1, VOCABULARY, (texts, 7)), 0).astype(np.int32)
    locations = rng.random((images, 4, 7)).astype(np.float32)
    return Images(regions, counts, locations=locations), Texts(ids, lengths)


def perturb(params):
    """Moves every parameter: one that begins at zero would hide what it multiplies."""
    leaves, treedef = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    return treedef.unflatten([leaf + rng.normal(scale=0.1, size=leaf.shape).astype(np.float32) for leaf in leaves])


@pytest.fixture(params=MATCHERS, scope='module')
def matcher(request):
    model = MATCHERS[request.param]
    variables = jax.jit(model.init)(jax.random.key(0), *make_inputs())
    statistics = jax.tree.map(lambda x: x + 0.1, variables.get('batch_stats', {}))
    return model, {'params': perturb(variables['params']), 'batch_stats': statistics}


def scores(matcher, images, texts):
    model, variables = matcher
    return np.asarray(jax.jit(model.apply)(variables, images, texts))


def test_it_says_what_texts_it_reads(matcher):
    model, _ = matcher
    read = {MATCHERS['rvsepp']: ('word pieces', 512), MATCHERS['uniter']: (None, 512)}
    assert model.text_format == read.get(model, ('words', None))


def test_every_leaf_of_an_encoding_has_the_item_on_axis_0(matcher):
    model, variables = matcher
    images, texts = make_inputs(images=3, texts=6)
    for train in (False, True):
        changing = {'mutable': ['batch_stats'], 'rngs': {'dropout': jax.random.key(0)}}
        encoded, _ = model.apply(variables, images, train, method='encode_image', **changing)
        for leaf in jax.tree.leaves(encoded):
            assert leaf.shape[0] == 3
    for leaf in jax.tree.leaves(model.apply(variables, texts, method='encode_text')):
        assert leaf.shape[0] == 6


def test_order_of_images_and_texts_does_not_matter(matcher):
    images, texts = make_inputs(images=4, texts=6)
    full = scores(matcher, images, texts)
    assert full.shape == (4, 6)
    assert full.dtype == np.float32
    rows, columns = np.array([2, 0, 3, 1]), np.array([5, 1, 0, 3, 2, 4])
    permuted = scores(matcher, jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts))
    np.testing.assert_allclose(permuted, full[rows][:, columns], atol=ROUNDING)


def test_padding_is_invisible(matcher):
    images, texts = make_inputs()
    regions, locations = (
        np.pad(x, [(0, 0), (0, 3), (0, 0)], constant_values=7) for x in (images.regions, images.locations)
    )
    beyond = np.arange(regions.shape[1]) >= images.counts[:, None]
    regions[beyond] = locations[beyond] = 1e3
    ids = np.pad(texts.ids, [(0, 0), (0, 4)])
    ids[np.arange(ids.shape[1]) >= texts.lengths[:, None]] = 3
    padded = scores(matcher, images.replace(regions=regions, locations=locations), Texts(ids, texts.lengths))
    np.testing.assert_allclose(padded, scores(matcher, images, texts), atol=ROUNDING)


@pytest.mark.parametrize('name', ['vse0', 'vsrn_f30k'])
def test_scores_that_are_products_are_those_of_vectors(name):
    model, inputs = MATCHERS[name], make_inputs()
    assert model.scores_products
    variables = model.init(jax.random.key(0), *inputs)
    methods = 'encode_image', 'encode_text'
    encoded = [model.apply(variables, side, method=method) for side, method in zip(inputs, methods, strict=True)]
    images, texts = (np.asarray(model.vectors(side)) for side in encoded)
    np.testing.assert_allclose(images @ texts.T, model.apply(variables, *inputs), rtol=1e-5)


def test_other_scores_are_no_products():
    assert not any(MATCHERS[name].scores_products for name in ('order0', 'scan_t2i', 'bfan_equal', 'sgr', 'naaf'))


def test_pairwise_is_the_diagonal(matcher):
    model, variables = matcher
    images, texts = make_inputs()
    encoded = (
        model.apply(variables, images, method='encode_image'),
        model.apply(variables, texts, method='encode_text'),
    )
    pairwise = model.apply(variables, *encoded, method='similarity_pairwise')
    np.testing.assert_allclose(pairwise, np.diag(scores(matcher, images, texts)), atol=ROUNDING)


@pytest.mark.parametrize('name', ['saf', 'naaf'])
def test_pairs_of_a_batch_that_decides_together_are_refused_in_training(name):
    with pytest.raises(UserError, match='scores a batch as a whole'):
        MATCHERS[name].init(jax.random.key(0), None, None, True, method='similarity_pairwise')


def test_chunks_give_the_whole_matrix(matcher):
    images, texts = make_inputs(images=4, texts=6)
    full = scores(matcher, images, texts)
    for rows in (slice(0, 2), slice(2, 4)):
        block = scores(matcher, jax.tree.map(lambda x, r=rows: x[r], images), jax.tree.map(lambda x: x[1:5], texts))
        np.testing.assert_allclose(block, full[rows, 1:5], atol=ROUNDING)


def test_gradients_are_finite_and_reach_every_parameter(matcher):
    model, variables = matcher
    images, texts = make_inputs()
    weights = np.random.default_rng(1).normal(size=(5, 5))

    def value(model):
        encoded = model.encode_image(images, True)
        scores = model.similarity(encoded, model.encode_text(texts, True), True)
        predictions = model.predict_tokens(encoded, texts, True)
        losses = [getattr(tokens, name)(p.logits, p.labels, p.mask) for name, p in predictions.items()]
        return jnp.sum(weights * scores) + sum(map(jnp.sum, losses))

    def loss(params):
        trained = {**variables, 'params': params}
        return model.apply(trained, method=value, mutable=['batch_stats'], rngs={'dropout': jax.random.key(0)})[0]

    gradients = jax.jit(jax.grad(loss))(variables['params'])
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
        if not jax.tree_util.keystr(path).endswith(WITHOUT_GRADIENT):
            assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


def test_is_traced_once(matcher):
    model, variables = matcher
    chex.clear_trace_counter()
    apply = jax.jit(chex.assert_max_traces(lambda *inputs: model.apply(*inputs), n=1))
    for seed in range(3):
        apply(variables, *make_inputs(seed=seed))


def test_half_precision_features_are_read_as_float32(matcher):
    images, texts = make_inputs()
    half = images.replace(regions=images.regions.astype(np.float16))
    same = images.replace(regions=half.regions.astype(np.float32))
    np.testing.assert_array_equal(scores(matcher, half, texts), scores(matcher, same, texts))


def test_half_precision_encodings_have_float32_scores(matcher):
    model, variables = matcher
    images, texts = make_inputs()

    def similarity(images, texts):
        encoded = (
            model.apply(variables, images, method='encode_image'),
            model.apply(variables, texts, method='encode_text'),
        )
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, encoded)
        return model.apply(variables, *half, method='similarity'), half

    scores, half = jax.eval_shape(similarity, images, texts)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half)} - {'bool', 'int32'} == {'bfloat16'}
    assert scores.dtype == np.float32


@pytest.mark.parametrize('measure', ['cosine', 'order'])
def test_vse_is_its_formula_in_float64(measure):
    model = make_vse(measure=measure, absolute=measure == 'order')
    images, texts = make_inputs()
    variables = model.init(jax.random.key(1), images, texts)
    fc = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params']['image']['image_fc'])
    text_vectors = np.asarray(model.apply(variables, texts, method='encode_text'), np.float64)
    np.testing.assert_allclose(np.linalg.norm(text_vectors, axis=1), 1, rtol=1e-6)
    assert (text_vectors >= 0).all() == model.absolute
    got = scores((model, variables), images, texts)
    for i in range(5):
        vector = images.regions[i, : images.counts[i]].astype(np.float64).mean(0) @ fc['kernel'] + fc['bias']
        vector /= np.linalg.norm(vector)
        for t in range(5):
            if measure == 'order':
                violation = np.maximum(0, text_vectors[t] - np.abs(vector))
                want = -np.sqrt(np.sum(violation**2))
            else:
                want = vector @ text_vectors[t]
            np.testing.assert_allclose(got[i, t], want, atol=1e-6)


def test_rvse_adds_the_mlp_of_the_layers_output_and_vse_infinity_that_of_the_features():
    images, texts = make_inputs()
    for name, residual, on_input in (('vse_mlp', 0, False), ('rvse_mlp', 1, False), ('vse_infty', 1, True)):
        model = MATCHERS[name]
        variables = model.init(jax.random.key(1), images, texts)
        regions, mask = model.image.apply({c: tree['image'] for c, tree in variables.items()}, images)
        p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params']['image'])
        x = np.where(mask[..., None], images.regions, 0).astype(np.float64)
        linear = x @ p['image_fc']['kernel'] + p['image_fc']['bias']
        hidden = (x if on_input else linear) @ p['image_mlp']['linear_1']['kernel'] + p['image_mlp']['linear_1']['bias']
        hidden = np.maximum(hidden / np.sqrt(1 + 1e-5), 0)  # the running statistics are still 0 and 1
        want = hidden @ p['image_mlp']['linear_2']['kernel'] + p['image_mlp']['linear_2']['bias'] + residual * linear
        np.testing.assert_allclose(regions[mask], want[mask], atol=1e-5)


def test_copies_of_an_image_keep_other_regions():
    images, _ = make_inputs(images=3)
    model = MATCHERS['esa']
    variables = model.init(jax.random.key(0), *make_inputs())
    kept = np.zeros((3, 2, 4), bool)
    kept[:, 0, 0], kept[:, 1] = True, True
    got = model.apply(variables, images.replace(kept=kept), method='encode_image')
    assert got.shape == (6, DIM)
    first = images.replace(counts=np.ones(3, np.int32))
    np.testing.assert_allclose(got[0::2], model.apply(variables, first, method='encode_image'), atol=1e-6)
    np.testing.assert_allclose(got[1::2], model.apply(variables, images, method='encode_image'), atol=1e-6)


def test_what_cannot_be_is_refused():
    images, texts = make_inputs()
    with pytest.raises(UserError, match=r"'model.embed_dim' is 1; with an MLP it must be at least 2"):
        vision.RegionEncoder(1, 'plain', False, False, False).init(jax.random.key(0), images)
    with pytest.raises(UserError, match=r"'model.text.dropout' is 1.0; it must be in \[0, 1\)"):
        text.GRUEncoder(VOCABULARY, DIM, 5, False, 1.0).init(jax.random.key(0), texts)
    copies = images.replace(kept=np.ones((5, 2, 4), bool))
    with pytest.raises(UserError, match=r"'augmentation.num_views' must be 1 for VSRN"):
        MATCHERS['vsrn_f30k'].init(jax.random.key(0), copies, texts)


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [('size', 'huge', 'take one of tiny, base, large'), ('dtype', 'float64', 'take one of float32, bfloat16')],
)
def test_berts_of_no_known_kind_are_refused(key, value, message):
    keywords = {'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.1, 'dtype': 'float32'} | {key: value}
    with pytest.raises(UserError, match=f"'model.text.{key}' is '{value}'; {message}"):
        text.BERTEncoder(VOCABULARY, DIM, **keywords).init(jax.random.key(0), make_inputs()[1])


def test_bfloat16_leaves_parameters_and_scores_in_float32():
    model = make_vse('residual', bert=True, **GPO)
    half = model.clone(text=model.text.clone(dtype='bfloat16'))
    inputs = make_inputs()
    variables = half.init(jax.random.key(0), *inputs)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(variables)} == {'float32'}
    got, want = scores((half, variables), *inputs), scores((model, variables), *inputs)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < 0.02


def test_vse0_keeps_the_length_of_image_vectors():
    images, texts = make_inputs()
    model = MATCHERS['vse0']
    variables = model.init(jax.random.key(0), images, texts)
    twice = images.replace(regions=2 * images.regions)
    np.testing.assert_allclose(
        scores((model, variables), twice, texts), 2 * scores((model, variables), images, texts), rtol=1e-5
    )


def test_a_perfectly_ordered_pair_has_no_gradient_and_no_nan():
    image, text = jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, 2.0])
    value, gradients = jax.value_and_grad(vse.order_similarity, (0, 1))(image, text)
    assert value == 0
    np.testing.assert_array_equal(gradients, 0)
    np.testing.assert_allclose(vse.order_similarity(jnp.zeros(2), jnp.asarray([3.0, 4.0])), -5)


def test_order_gradient_is_the_numerical_one():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        pair = (jnp.asarray(rng.normal(size=6)), jnp.asarray(rng.normal(size=6)))
        chex.assert_numerical_grads(vse.order_similarity, pair, order=1, atol=1e-6)


def test_an_unknown_measure_is_refused():
    with pytest.raises(UserError, match="is 'euclid'; take 'cosine' or 'order'"):
        make_vse(measure='euclid').init(jax.random.key(0), *make_inputs())
