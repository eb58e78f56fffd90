"""Small matchers of every kind, their inputs, and their outputs, each compiled once."""

import functools

import jax
import numpy as np

from jitm.layers import alignment, clip_resnet, clip_text, siglip, text, vision, vit
from jitm.layers.blip import MultimodalBERT, NormalizedViT
from jitm.models import bfan, blip, chan, clip, gsmn, imram, maxsim, naaf, oscar, scan, sgraf, uniter, vse, vsrn
from jitm.types import Images, Texts

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
    'chan': chan.CHAN(DIM, **sides()),
    'maxsim_both': maxsim.MaxSim(DIM, direction='both', **sides()),
    'gsmn': gsmn.GSMN(DIM, blocks=4, **sides() | ATTENTION),
    'vsrn_coco': vsrn.VSRN(**VSRN | {'normalize_before_graph': True, 'batch_norm': False}),
    'uniter': uniter.UNITER(VOCABULARY, 'tiny', dropout=0.1, dtype='float32', heads=()),
    'oscar': oscar.OSCAR(VOCABULARY, 'tiny', dropout=0.1, dtype='float32', image_norm=True),
    'vse_tokens': make_vse(**TOKENS, image_pooling='gpo', text_pooling='gpo'),
    'scan_tokens': make_scan('t2i', 'Mean', **TOKENS),
    'maxsim_tokens': maxsim.MaxSim(DIM, **sides() | TOKENS),
    'sgr_tokens': make_sgraf(alignment.GraphReasoning(3), **TOKENS),
    'clip_vit': make_clip(vit.ViT(DIM, image_size=32, patch_size=16, **TOWER, **PIXELS)),
    'siglip': make_siglip(),
    'blip': make_blip(),
    'blip_matching': make_blip().reranker,
    'clip_resnet': make_clip(clip_resnet.ModifiedResNet(DIM, **RESNET, dtype='float32', **PIXELS)),
}
VARIANTS = (  # of models that the fast tests have
    *('vse0', 'order0', 'vse_fc', 'vse_mlp', 'vse_infty', 'esa', 'max_pooling', 'bfan_equal', 'bfan_prob', 'dbl'),
    *('imram_t2i', 'vsrn_coco', 'vse_tokens', 'scan_tokens', 'maxsim_tokens', 'sgr_tokens', 'blip'),
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
REGIONS = 4  # valid at most
WORDS = 6
TAGS = 3
PADDED_REGIONS = 7
PADDED_WORDS = 11
PADDED_TAGS = 5


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
        regions = np.pad(regions, rows)
        locations = np.pad(locations, rows)
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
