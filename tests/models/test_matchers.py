"""The conformance tests of all matchers, and tests of single ones.

What costs time is tracing and compiling, so that each model is compiled once and all tests share the result.
"""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers import text, vision
from jitm.losses import tokens
from jitm.models import vse
from jitm.models.joint import JointEncoder, has_heads, read_pairs
from jitm.models.make import model_keys
from jitm.models.matcher import DualEncoder
from jitm.models.tiled import CrossAttentionMatcher, TiledMatcher
from jitm.types import TextFormat
from tests.golden.steps import SCORES, reduce
from tests.support.matchers import (
    DIM,
    MATCHERS,
    OF_PIXELS,
    OF_RERANKER,
    PADDED_REGIONS,
    ROUNDING,
    SIZE,
    VARIANTS,
    VOCABULARY,
    WITHOUT_GRADIENT,
    compiled,
    make_forward,
    make_inputs,
    make_scan,
    make_vse,
    outputs,
)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in MATCHERS])
def name(request):
    return request.param


FORMATS = {'uniter': TextFormat(None, 512), 'oscar': TextFormat(None, 70), 'siglip': TextFormat(None, 12)}
FORMATS |= {'rvsepp': TextFormat('word pieces', 512, skips_padding=True), 'vse_tokens': TextFormat(None, vectors=True)}
FORMATS |= dict.fromkeys(({*OF_PIXELS} - {'siglip'}), TextFormat(None, 12, skips_padding=True))
TOKEN_VECTORS = TextFormat(None, vectors=True, skips_padding=True)
FORMATS |= dict.fromkeys(('scan_tokens', 'maxsim_tokens', 'sgr_tokens'), TOKEN_VECTORS)
READS = {'uniter': ('regions', 'locations'), 'oscar': ('regions', 'locations', 'tags')}
READS |= dict.fromkeys(OF_PIXELS, ('pixels',))


def test_text_format(name):
    model = MATCHERS[name]
    words = TextFormat('words', skips_padding=not getattr(model, 'caption', False))
    assert model.text_format == FORMATS.get(name, words)


def test_only_what_a_model_reads_of_images_is_required(name):
    model, variables, _ = compiled(name)
    assert model.reads == READS.get(name, ('regions',))
    images, _ = make_inputs()
    images = images.replace(**dict.fromkeys({'regions', 'locations', 'tags', 'pixels'} - {*model.reads}))
    jax.eval_shape(functools.partial(model.apply, method='encode_image'), variables, images)


def test_shapes_and_dtypes(name):
    model, variables, _ = compiled(name)
    images, texts = make_inputs(images=3, texts=6)

    def shapes(model):
        encoded = model.encode_image(images), model.encode_text(texts)
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, encoded)
        in_training = model.encode_image(images, True)
        return (encoded[0], in_training), encoded[1], half, [model.similarity(*sides) for sides in (encoded, half)]

    apply = functools.partial(model.apply, method=shapes, mutable=['batch_stats'], rngs={'dropout': jax.random.key(0)})
    (image, text, half, scores), _ = jax.eval_shape(apply, variables)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(image)} == {3}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(text)} == {6}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half)} - {'bool', 'int32'} == {'bfloat16'}
    assert [(matrix.shape, matrix.dtype) for matrix in scores] == [((3, 6), np.float32)] * 2


def test_score_depends_on_its_pair_alone(name):
    _, variables, forward = compiled(name)
    images, texts = make_inputs()
    rows = np.array([2, 0, 3, 1, 2])
    columns = np.array([4, 1, 0, 0, 2])
    chosen = forward(variables, jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts))
    np.testing.assert_allclose(chosen['scores'], outputs(name)['scores'][rows][:, columns], atol=ROUNDING)


def test_padding_is_invisible(name):
    _, variables, forward = compiled(name)
    without_padding = forward(variables, *make_inputs(padded=False))
    np.testing.assert_allclose(outputs(name)['scores'], without_padding['scores'], atol=ROUNDING)


def test_scores_are_the_recorded_ones(name):
    """Those of a state whose models were compared with PyTorch; `python -m tests.golden.steps` renews them."""
    np.testing.assert_allclose(reduce(outputs(name)['scores']), SCORES[name], rtol=1e-5, atol=1e-4)


def test_pairwise_is_the_diagonal(name):
    np.testing.assert_allclose(outputs(name)['pairwise'], np.diag(outputs(name)['scores']), atol=ROUNDING)


def test_other_values_are_not_traced_again(name):
    _, variables, forward = compiled(name)
    outputs(name)
    count = forward._cache_size()
    forward(variables, *make_inputs(seed=1))
    assert forward._cache_size() == count


# Models whose gradients tests/parity does not compare with those of PyTorch.
ALONE = 'vsrn_f30k', 'max_pooling', 'vse_tokens', 'clip_vit', 'clip_resnet', 'siglip', 'blip', 'blip_matching'


@pytest.mark.slow
@pytest.mark.parametrize('name', ALONE)
def test_gradients_are_finite_and_reach_every_parameter(name):
    model, variables, _ = compiled(name)
    images, texts = make_inputs()
    weights = np.random.default_rng(1).normal(size=(SIZE, SIZE))

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
        unread = name == 'blip' and any(part in jax.tree_util.keystr(path) for part in OF_RERANKER)
        if not unread and not jax.tree_util.keystr(path).endswith(WITHOUT_GRADIENT):
            assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)


def test_capabilities_are_classes():
    names = {kind: [] for kind in (DualEncoder, CrossAttentionMatcher, JointEncoder)}
    for name, model in MATCHERS.items():
        for kind, of_kind in names.items():
            if isinstance(model, kind):
                of_kind.append(name)
    scan_lineage = ['scan_t2i', 'scan_i2t', 'bfan_equal', 'bfan_prob', 'sgr', 'saf', 'dbl', 'naaf']
    later = ['imram_t2i', 'imram_both', 'chan', 'maxsim_both', 'gsmn']
    assert names[CrossAttentionMatcher] == [*scan_lineage, *later, 'scan_tokens', 'maxsim_tokens', 'sgr_tokens']
    assert names[JointEncoder] == ['uniter', 'oscar', 'blip_matching']
    assert sorted([*itertools.chain(*names.values()), 'order0', 'orderpp']) == sorted(MATCHERS)


def test_heads_are_those_of_joint_encoders():
    joint = MATCHERS['uniter'].clone(heads=('mlm',))
    assert has_heads(joint, ('rank', 'mlm'))
    assert not has_heads(joint, ('itm',))
    assert not has_heads(MATCHERS['vsepp'], ('rank',))
    model, variables, _ = compiled('vsepp')
    got = read_pairs(model.bind(variables), *outputs('vsepp')['encoded'], ('rank',))
    np.testing.assert_allclose(got['rank'], outputs('vsepp')['pairwise'], atol=ROUNDING)
    with pytest.raises(UserError, match='VSE does not read words together with an image'):
        read_pairs(model, None, None, ('mlm',))


@pytest.mark.parametrize('name', ['vse0', 'vsrn_f30k'])
def test_dual_scores_are_inner_products(name):
    images, texts = (np.asarray(MATCHERS[name].vectors(side)) for side in outputs(name)['encoded'])
    np.testing.assert_allclose(images @ texts.T, outputs(name)['scores'], rtol=1e-4, atol=ROUNDING)


@pytest.mark.parametrize('name', ['saf', 'naaf'])
def test_pairs_are_refused_if_a_batch_is_scored_as_a_whole(name):
    with pytest.raises(UserError, match='scores a whole batch in training and no single pairs'):
        MATCHERS[name].init(jax.random.key(0), None, None, True, method='similarity_pairwise')


@pytest.mark.parametrize('name', ['vsepp', 'vsrn_f30k', 'uniter'])  # the three image encoders
def test_half_precision_features_are_read_as_float32(name):
    model, variables, _ = compiled(name)
    images, _ = make_inputs()
    half = images.replace(regions=images.regions.astype(np.float16))
    same = images.replace(regions=half.regions.astype(np.float32))
    encode = jax.jit(lambda images: model.apply(variables, images, method='encode_image'))
    chex.assert_trees_all_equal(encode(half), encode(same))


def test_views_keep_different_regions():
    (images, _) = make_inputs(images=3)
    (model, variables, _) = compiled('esa')
    encode = jax.jit(lambda images: model.apply(variables, images, method='encode_image'))
    kept = np.zeros((3, 2, PADDED_REGIONS), bool)
    kept[:, 0, 0] = True
    kept[:, 1] = True
    got = encode(images.replace(kept=kept))
    assert got.shape == (6, DIM)
    np.testing.assert_allclose(got[0::2], encode(images.replace(counts=np.ones(3, np.int32))), atol=1e-6)
    np.testing.assert_allclose(got[1::2], encode(images), atol=1e-6)


BERT_ENCODER = {'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.1, 'dtype': 'float32'}


def with_bert(**changes):
    return make_vse().clone(text=text.BERTEncoder(VOCABULARY, DIM, **BERT_ENCODER | changes))


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (make_vse().clone(image=vision.RegionEncoder(1, 'plain', False)), "image.embed_dim' is 1; with"),
        (make_vse(image_pooling='gop'), "image_pooling' is 'gop'; use one of mean, mean_sqrt"),
        (with_bert(size='huge'), "text.size' is 'huge'; use one of tiny, base, large"),
        (with_bert(dtype='float64'), "text.dtype' is 'float64'; use one of float32, bfloat16"),
        (MATCHERS['uniter'].clone(size='huge'), "size' is 'huge'; use one of tiny, base, large"),
        (MATCHERS['uniter'].clone(dtype='float64'), "dtype' is 'float64'; use one of float32, bfloat16"),
        (
            MATCHERS['uniter'].clone(heads=('mlm', 'rank')),
            "heads' is 'rank'; use one of itm, mlm, discrim",
        ),
        (make_scan('both', 'Mean'), "direction' is 'both'; use one of t2i, i2t"),
        (make_scan('t2i', 'Median'), "aggregation' is 'Median'; use one of LogSumExp"),
        (MATCHERS['bfan_equal'].clone(focal='hard'), "focal' is 'hard'; use one of equal, prob"),
        (MATCHERS['imram_both'].clone(direction='text'), "direction' is 'text'; use one of both, t2i"),
        (MATCHERS['gsmn'].clone(blocks=3), "blocks' is 3, which does not divide embed_dim, 8"),
        (MATCHERS['dbl'].clone(activation='relu'), "activation' is 'relu'; use one of sigmoid"),
        (MATCHERS['sgr'].clone(text_whole=None), "image_whole' and text_whole must both be given, or neither"),
    ],
)
def test_errors_name_the_config_key(model, message):
    with pytest.raises(UserError, match=f"'model.{message}"), model_keys():
        jax.eval_shape(model.init, jax.random.key(0), *make_inputs())


@pytest.mark.parametrize('side', ['image', 'text'])
@pytest.mark.parametrize('tiled', [name for name, model in MATCHERS.items() if isinstance(model, TiledMatcher)])
def test_encoders_of_two_sizes_are_one_sentence(tiled, side):
    model = MATCHERS[tiled]
    other = model.clone(**{side: getattr(model, side).clone(embed_dim=12)})
    with pytest.raises(UserError, match=f"'model.{side}' has vectors of 12 numbers, but .* sets both"), model_keys():
        jax.eval_shape(other.init, jax.random.key(0), *make_inputs())


def test_errors_without_a_config_name_the_argument():
    encoder = text.GRUEncoder(VOCABULARY, DIM, 5, False, 0.0, word_init='zeros')
    with pytest.raises(ValueError, match=r"^word_init is 'zeros'; use one of uniform, normal"):
        encoder.init(jax.random.key(0), make_inputs()[1])
    views = make_inputs()[0].replace(kept=np.ones((SIZE, 2, PADDED_REGIONS), bool))
    with pytest.raises(UserError, match=r"'augmentation.num_views' must be 1: VSRN reads one view of each image"):
        MATCHERS['vsrn_f30k'].init(jax.random.key(0), views, make_inputs()[1])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['rvsepp', 'uniter'])
def test_bfloat16_leaves_parameters_and_scores_in_float32(name):
    model, variables, _ = compiled(name)
    half = model.clone(dtype='bfloat16') if name == 'uniter' else model.clone(text=model.text.clone(dtype='bfloat16'))
    drawn = jax.eval_shape(half.init, jax.random.key(0), *make_inputs())
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(drawn)} == {'float32'}
    got = make_forward(half)(variables, *make_inputs())['scores']
    assert got.dtype == np.float32
    assert 0 < np.abs(got - outputs(name)['scores']).max() < 0.1


def test_ordered_pair_has_score_0_without_gradient():
    image = jnp.asarray([1.0, 2.0])
    text = jnp.asarray([0.5, 2.0])
    value, gradients = jax.value_and_grad(vse.order_similarity, (0, 1))(image, text)
    assert value == 0
    np.testing.assert_array_equal(gradients, 0)
    np.testing.assert_allclose(vse.order_similarity(jnp.zeros(2), jnp.asarray([3.0, 4.0])), -5)
