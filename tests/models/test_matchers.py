"""The conformance tests of all matchers, and tests of single ones.

What costs time is tracing and compiling, so that each model is compiled once and all tests share the result.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers import alignment, clip_resnet, clip_text, siglip, text, vision, vit
from jitm.layers.blip import MultimodalBERT, NormalizedViT
from jitm.losses import tokens
from jitm.models import bfan, blip, clip, gsmn, imram, naaf, oscar, scan, sgraf, uniter, vse, vsrn
from jitm.models.joint import JointEncoder, has_heads, read_pairs
from jitm.models.make import model_keys
from jitm.models.matcher import DualEncoder
from jitm.models.tiled import CrossAttentionMatcher, TiledMatcher
from jitm.types import Images, TextFormat, Texts
from tests.golden.steps import SCORES, reduce

VOCABULARY = 12
ROUNDING = 5e-6  # of scores in float32
DIM = 8


def make_vse(mlp='none', bidirectional=False, bert=False, make=vse.VSE, **changes):
    """VSE++ at a small size, or another model of its kind."""
    image = vision.RegionEncoder(DIM, mlp=mlp, norm_padding=False)
    text_encoder = text.GRUEncoder(VOCABULARY, DIM, word_dim=5, bidirectional=bidirectional, dropout=0.0)
    if bert:
        text_encoder = text.BERTEncoder(VOCABULARY, DIM, 'tiny', dropout=0.1, output_dropout=0.1, dtype='float32')
    keywords = {'image_pooling': 'mean', 'text_pooling': 'last', 'normalize_images': True, 'absolute': False}
    return make(DIM, image, **{'text': text_encoder} | keywords | changes)


ATTENTION = {'lambda_softmax': 9.0}


def sides(**changes):
    """The encoders of a model of the SCAN lineage."""
    image = vision.RegionEncoder(DIM, mlp='none', norm_padding=False)
    return {'image': image, 'text': text.GRUEncoder(VOCABULARY, DIM, 5, bidirectional=True, dropout=0.0)} | changes


def make_scan(direction, aggregation, **changes):
    options = ATTENTION | {'direction': direction, 'aggregation': aggregation, 'lambda_lse': 6.0} | changes
    return scan.SCAN(DIM, **sides() | options)


def make_sgraf(reasoning, wholes=True, **changes):
    image_whole = alignment.SelfAttention(dropout=0.4, slots=7) if wholes else None
    text_whole = alignment.SelfAttention(dropout=0.4, slots=None) if wholes else None
    options = {'image_whole': image_whole, 'text_whole': text_whole, 'reasoning': reasoning}
    options |= ATTENTION | {'activation': 'sigmoid'} | changes
    return sgraf.SGRAF(DIM, alignment_dim=6, **sides() | options)


NAAF = {'lambda_softmax': 20.0, 'lambda_smoothing': 5.0}
NAAF |= {'alpha': 2.0, 'minimum_words': 4}
TOKENS = {'text': text.TokenEncoder(DIM, dropout=0.1)}
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
TOWER = {
    'hidden_dim': 8,
    'num_layers': 2,
    'num_heads': 2,
    'mlp_dim': 12,
    'activation': 'quick_gelu',
    'dtype': 'float32',
}
PIXELS = {'mean': (0.5, 0.4, 0.3), 'deviation': (0.3, 0.4, 0.5)}


def make_clip(image, text=None):
    text = text or clip_text.CausalTransformer(DIM, vocab_size=VOCABULARY, max_length=12, **TOWER)
    return clip.CLIP(DIM, image, text, initial_temperature=0.07)


def make_siglip():
    tower = TOWER | {'activation': 'gelu_tanh'}
    image = siglip.PooledViT(DIM, image_size=32, patch_size=10, **tower, **PIXELS)
    text = siglip.PaddedTransformer(DIM, vocab_size=VOCABULARY, max_length=12, pad=1, **tower)
    return clip.SigLIP(DIM, image, text, initial_temperature=0.1, initial_bias=-10.0)


def make_blip():
    tower = TOWER | {'activation': 'gelu'}
    image = NormalizedViT(DIM, image_size=32, patch_size=16, **tower, **PIXELS)
    text = MultimodalBERT(DIM, vocab_size=VOCABULARY, max_length=12, **tower | {'hidden_dim': 6})
    return blip.BLIP(DIM, image, text, initial_temperature=0.07)


RESNET = {'image_size': 32, 'blocks': (1, 1, 1, 1), 'stem_dim': 4, 'num_heads': 2, 'train_norm': True}
MATCHERS = {
    'vsepp': make_vse(),
    'vse0': make_vse(normalize_images=False),
    'order0': make_vse(absolute=True, make=vse.OrderEmbedding),
    'orderpp': make_vse(make=vse.OrderEmbedding),
    'vse_fc': make_vse(**GPO),
    'vse_mlp': make_vse('plain', **GPO),
    'rvse_mlp': make_vse('residual', **GPO),
    'vse_infty': make_vse('residual_on_input', **GPO),
    'esa': make_vse('residual_on_input', **GPO | {'image_pooling': 'esa', 'text_pooling': 'esa'}),
    'rvsepp': make_vse('residual', bert=True, **GPO),
    'max_pooling': make_vse(image_pooling='max', text_pooling='mean'),
    'vsrn_f30k': vsrn.VSRN(**VSRN),
    'scan_t2i': make_scan('t2i', 'LogSumExp'),
    'scan_i2t': make_scan('i2t', 'Mean'),
    'bfan_equal': bfan.BFAN(DIM, focal='equal', **sides() | ATTENTION),
    'bfan_prob': bfan.BFAN(DIM, focal='prob', **sides() | ATTENTION),
    'sgr': make_sgraf(alignment.GraphReasoning(3)),
    'saf': make_sgraf(alignment.AttentionFiltration()),
    'dbl': make_sgraf(alignment.Mean(), wholes=False, activation='tanh'),
    'naaf': naaf.NAAF(DIM, **sides() | NAAF),
    'imram_t2i': imram.IMRAM(DIM, direction='t2i', steps=2, **sides() | ATTENTION),
    'imram_both': imram.IMRAM(DIM, direction='both', steps=3, **sides() | ATTENTION),
    'gsmn': gsmn.GSMN(DIM, blocks=4, **sides() | ATTENTION),
    'vsrn_coco': vsrn.VSRN(**VSRN | {'normalize_before_graph': True, 'batch_norm': False}),
    'uniter': uniter.UNITER(VOCABULARY, 'tiny', dropout=0.1, dtype='float32', heads=()),
    'oscar': oscar.OSCAR(VOCABULARY, 'tiny', dropout=0.1, dtype='float32', image_norm=True),
    'vse_tokens': make_vse(**TOKENS, image_pooling='gpo', text_pooling='gpo'),
    'scan_tokens': make_scan('t2i', 'Mean', **TOKENS),
    'sgr_tokens': make_sgraf(alignment.GraphReasoning(3), **TOKENS),
    'clip_vit': make_clip(vit.ViT(DIM, image_size=32, patch_size=16, **TOWER, **PIXELS)),
    'siglip': make_siglip(),
    'blip': make_blip(),
    'blip_matching': make_blip().reranker,
    'clip_resnet': make_clip(clip_resnet.ModifiedResNet(DIM, **RESNET, dtype='float32', **PIXELS)),
}

VARIANTS = (  # of models that the fast tests have
    *('vse0', 'order0', 'vse_fc', 'vse_mlp', 'vse_infty', 'esa', 'max_pooling', 'bfan_equal', 'bfan_prob', 'dbl'),
    *('imram_t2i', 'vsrn_coco', 'vse_tokens', 'scan_tokens', 'sgr_tokens', 'blip'),
)
OF_PIXELS = ('clip_vit', 'clip_resnet', 'siglip', 'blip', 'blip_matching')

# A softmax cancels a constant of all scores, and batch normalization one of its inputs.
WITHOUT_GRADIENT = (
    "['key']['bias']",
    "['scores']['bias']",
    "['linear_1']['bias']",
    "['image_whole']['whole']['bias']",
    "['relevance']['bias']",
    *("['logit_scale']", "['logit_bias']"),  # only the loss reads them
)
OF_RERANKER = ("['itm_head']", "['cross_")  # of BLIP, which its own scores do not read
SIZE = 5  # images, and texts
REGIONS, WORDS = 4, 6  # valid at most
TAGS = 3
PADDED_REGIONS, PADDED_WORDS, PADDED_TAGS = 7, 11, 5


def make_inputs(images=SIZE, texts=SIZE, seed=0, padded=True):
    """Images and texts, padded to one shape with values that no model may read."""
    rng = np.random.default_rng(seed)
    regions = rng.normal(size=(images, REGIONS, 6)).astype(np.float32)
    counts = rng.integers(1, REGIONS + 1, images).astype(np.int32)
    lengths = rng.integers(2, WORDS + 1, texts).astype(np.int32)
    ids = rng.integers(1, VOCABULARY, (texts, WORDS)).astype(np.int32)
    locations = rng.random((images, REGIONS, 7)).astype(np.float32)
    num_tags = rng.integers(0, TAGS + 1, images).astype(np.int32)
    tags = rng.integers(1, VOCABULARY, (images, TAGS)).astype(np.int32)
    ids[np.arange(WORDS) >= lengths[:, None]] = 0
    if padded:
        rows = [(0, 0), (0, PADDED_REGIONS - REGIONS), (0, 0)]
        regions, locations = np.pad(regions, rows), np.pad(locations, rows)
        beyond = np.arange(PADDED_REGIONS) >= counts[:, None]
        regions[beyond] = locations[beyond] = 1e3
        ids = np.pad(ids, [(0, 0), (0, PADDED_WORDS - WORDS)])
        ids[np.arange(PADDED_WORDS) >= lengths[:, None]] = 3
        tags = np.pad(tags, [(0, 0), (0, PADDED_TAGS - TAGS)])
        tags[np.arange(PADDED_TAGS) >= num_tags[:, None]] = 3
    pixels = rng.integers(0, 256, (images, 32, 32, 3), np.uint8)
    vectors = np.random.default_rng(seed).normal(size=(texts, WORDS, 6)).astype(np.float32)
    vectors = np.pad(vectors, [(0, 0), (0, ids.shape[1] - WORDS), (0, 0)])
    vectors[np.arange(ids.shape[1]) >= lengths[:, None]] = 1e3 if padded else 0
    images = Images(regions, counts, locations=locations, pixels=pixels, tags=Texts(tags, num_tags))
    return images, Texts(ids, lengths, vectors)


def perturb(params):
    """Moves every parameter: one that is initialized as zero would hide its inputs."""
    leaves, treedef = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    return treedef.unflatten([leaf + rng.normal(scale=0.1, size=leaf.shape).astype(np.float32) for leaf in leaves])


def random_variables(model, *inputs):
    """Random parameters and statistics of a model; unlike its own initialization they need no compilation."""
    rng = np.random.default_rng(0)

    def sample(path, leaf):
        name = path[-1].key
        deviation = max(leaf.shape) ** -0.5 if leaf.ndim > 1 else 0.1
        values = rng.normal(scale=deviation, size=leaf.shape)
        return np.float32(1 + abs(values) if name in ('scale', 'variance', 'length') else values)

    return jax.tree_util.tree_map_with_path(sample, jax.eval_shape(model.init, jax.random.key(0), *inputs))


def run(model, images, texts):
    encoded = model.encode_image(images), model.encode_text(texts)
    return {
        'encoded': encoded,
        'scores': model.similarity(*encoded),
        'pairwise': model.similarity_pairwise(*encoded),
    }


def make_forward(model):
    return jax.jit(lambda variables, images, texts: model.apply(variables, images, texts, method=run))


@functools.cache
def compiled(name):
    """A model, its variables, and a compiled function of them, images and texts."""
    model = MATCHERS[name]
    return model, {'batch_stats': {}} | random_variables(model, *make_inputs()), make_forward(model)


@functools.cache
def outputs(name):
    _, variables, forward = compiled(name)
    return jax.device_get(forward(variables, *make_inputs()))


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in MATCHERS])
def name(request):
    return request.param


def test_text_format(name):
    formats = {'uniter': TextFormat(None, 512), 'oscar': TextFormat(None, 70)}
    formats['rvsepp'] = TextFormat('word pieces', 512, profile=True)
    formats |= dict.fromkeys(OF_PIXELS, TextFormat(None, 12, profile=True))
    formats |= {'siglip': TextFormat(None, 12), 'vse_tokens': TextFormat(None, vectors=True)}
    formats |= dict.fromkeys(('scan_tokens', 'sgr_tokens'), TextFormat(None, vectors=True, profile=True))
    model = MATCHERS[name]
    words = TextFormat('words', profile=not getattr(model, 'caption', False))
    assert model.text_format == formats.get(name, words)


def test_only_what_a_model_reads_of_images_is_required(name):
    model, variables, _ = compiled(name)
    reads = MATCHERS[name].reads
    others = {'uniter': ('regions', 'locations'), 'oscar': ('regions', 'locations', 'tags')}
    others |= dict.fromkeys(OF_PIXELS, ('pixels',))
    assert reads == others.get(name, ('regions',))
    images, _ = make_inputs()
    fields = ('regions', 'locations', 'tags', 'pixels')
    images = images.replace(**{field: None for field in fields if field not in reads})
    jax.eval_shape(functools.partial(model.apply, method='encode_image'), variables, images)


def test_shapes_and_dtypes(name):
    model, variables, _ = compiled(name)
    images, texts = make_inputs(images=3, texts=6)

    def shapes(model):
        encoded = model.encode_image(images), model.encode_text(texts)
        half = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, encoded)
        return *encoded, model.encode_image(images, True), half, model.similarity(*encoded), model.similarity(*half)

    apply = functools.partial(model.apply, method=shapes, mutable=['batch_stats'], rngs={'dropout': jax.random.key(0)})
    (image, text, image_in_training, half, scores, half_scores), _ = jax.eval_shape(apply, variables)
    assert {leaf.shape[0] for leaf in jax.tree.leaves((image, image_in_training))} == {3}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(text)} == {6}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(half)} - {'bool', 'int32'} == {'bfloat16'}
    for matrix in (scores, half_scores):
        assert (matrix.shape, matrix.dtype) == ((3, 6), np.float32)


def test_score_depends_on_its_pair_alone(name):
    _, variables, forward = compiled(name)
    images, texts = make_inputs()
    rows, columns = np.array([2, 0, 3, 1, 2]), np.array([4, 1, 0, 0, 2])
    chosen = forward(variables, jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts))
    np.testing.assert_allclose(chosen['scores'], outputs(name)['scores'][rows][:, columns], atol=ROUNDING)


@pytest.mark.parametrize(
    'name',
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ('vsepp', 'scan_t2i', 'uniter'))) for name in MATCHERS],
)
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


@pytest.mark.slow
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
    dual = [name for name, model in MATCHERS.items() if isinstance(model, DualEncoder)]
    cross = [name for name, model in MATCHERS.items() if isinstance(model, CrossAttentionMatcher)]
    joint = [name for name, model in MATCHERS.items() if isinstance(model, JointEncoder)]
    scan_lineage = ['scan_t2i', 'scan_i2t', 'bfan_equal', 'bfan_prob', 'sgr', 'saf', 'dbl', 'naaf']
    assert cross == [*scan_lineage, 'imram_t2i', 'imram_both', 'gsmn', 'scan_tokens', 'sgr_tokens']
    assert joint == ['uniter', 'oscar', 'blip_matching']
    assert sorted([*dual, *cross, *joint, 'order0', 'orderpp']) == sorted(MATCHERS)


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
    (images, _), (model, variables, _) = make_inputs(images=3), compiled('esa')
    encode = jax.jit(lambda images: model.apply(variables, images, method='encode_image'))
    kept = np.zeros((3, 2, PADDED_REGIONS), bool)
    kept[:, 0, 0], kept[:, 1] = True, True
    got = encode(images.replace(kept=kept))
    assert got.shape == (6, DIM)
    np.testing.assert_allclose(got[0::2], encode(images.replace(counts=np.ones(3, np.int32))), atol=1e-6)
    np.testing.assert_allclose(got[1::2], encode(images), atol=1e-6)


BERT_ENCODER = {'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.1, 'dtype': 'float32'}


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (make_vse().clone(image=vision.RegionEncoder(1, 'plain', False)), "image.embed_dim' is 1; with"),
        (make_vse(image_pooling='gop'), "image_pooling' is 'gop'; use one of mean, mean_sqrt"),
        (
            make_vse().clone(text=text.BERTEncoder(VOCABULARY, DIM, **BERT_ENCODER | {'size': 'huge'})),
            "text.size' is 'huge'; use one of tiny, base, large",
        ),
        (
            make_vse().clone(text=text.BERTEncoder(VOCABULARY, DIM, **BERT_ENCODER | {'dtype': 'float64'})),
            "text.dtype' is 'float64'; use one of float32, bfloat16",
        ),
    ],
)
def test_errors_name_the_config_key(model, message):
    with pytest.raises(UserError, match=f"config key 'model.{message}"), model_keys():
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


def test_bfloat16_leaves_parameters_and_scores_in_float32():
    model, variables, _ = compiled('rvsepp')
    half = model.clone(text=model.text.clone(dtype='bfloat16'))
    drawn = jax.eval_shape(half.init, jax.random.key(0), *make_inputs())
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(drawn)} == {'float32'}
    got = make_forward(half)(variables, *make_inputs())['scores']
    assert got.dtype == np.float32
    assert 0 < np.abs(got - outputs('rvsepp')['scores']).max() < 0.02


def test_ordered_pair_has_score_0_without_gradient():
    image, text = jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, 2.0])
    value, gradients = jax.value_and_grad(vse.order_similarity, (0, 1))(image, text)
    assert value == 0
    np.testing.assert_array_equal(gradients, 0)
    np.testing.assert_allclose(vse.order_similarity(jnp.zeros(2), jnp.asarray([3.0, 4.0])), -5)
