"""A tiny CLIP as Hugging Face, OpenAI and open_clip publish theirs, and the comparison of its vectors."""

import dataclasses
import functools
import itertools
import json

import jax
import numpy as np
from safetensors.numpy import save_file

from jitm.data.text.pieces import BPE
from jitm.importers.clip_weights import HUGGING_FACE, OPENAI
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.parity.bounds import assert_within
from tests.support.configs import changed

E, WIDTH, HEADS, LAYERS, PATCH, SIZE, LENGTH = 12, 16, 2, 2, 8, 16, 10
MERGES = ('t h', 'th e</w>')
V = 512 + len(MERGES) + 2
PROCESSOR = {  # of transformers
    'do_resize': True,
    'size': {'shortest_edge': SIZE},
    'resample': 3,
    'do_center_crop': True,
    'crop_size': {'height': SIZE, 'width': SIZE},
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
}


def write_merges(folder, merges=MERGES) -> str:
    path = folder / 'merges.txt'
    path.write_text('\n'.join(['#version: 0.2', *merges]) + '\n', encoding='utf-8')
    return str(path)


def full_size_merges() -> list[str]:
    """As many merges as CLIP has."""
    characters = BPE.of(()).words[:256]
    return [f'{a} {b}' for a, b in itertools.product(characters, characters)][:48894]


def model_of(size=SIZE, length=LENGTH):
    """The config's `model` of a tiny CLIP."""
    tower = {'hidden_dim': WIDTH, 'num_layers': LAYERS, 'num_heads': HEADS, 'mlp_dim': 4 * WIDTH, 'dtype': 'float32'}
    tower |= {'activation': 'quick_gelu'}
    pixels = {'image_size': size, 'patch_size': PATCH, 'mean': CLIP_MEAN, 'deviation': CLIP_DEVIATION}
    return {
        'name': 'clip.CLIP',
        'embed_dim': E,
        'image': {'name': 'vit.ViT', **pixels, **tower},
        'text': {'name': 'clip_text.CausalTransformer', 'max_length': length, **tower},
        'initial_temperature': 0.07,
    }


def draw(model, words):
    """Random variables of a model."""
    size = model['image']['image_size']
    rng = np.random.default_rng(0)
    shapes = shapes_of(model, words, Images(pixels=np.zeros((1, size, size, 3), np.uint8)))
    drawn = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return {'params': {}, 'batch_stats': {}} | drawn


@functools.cache
def variables(**sizes):
    return draw(model_of(**sizes), V)


def hugging_face(**sizes) -> dict[str, np.ndarray]:
    """Tensors as `CLIPModel` names them."""
    return export(variables(**sizes), HUGGING_FACE)


def open_clip() -> dict[str, np.ndarray]:
    """The same tensors with the names of OpenAI and open_clip."""
    return {name: np.array(tensor, order='C') for name, tensor in export(variables(), OPENAI).items()}


def hugging_face_config(changes=()):
    """A config whose dotted keys may have other values."""
    tower = {
        'hidden_size': WIDTH,
        'intermediate_size': 4 * WIDTH,
        'num_hidden_layers': LAYERS,
        'num_attention_heads': HEADS,
        'hidden_act': 'quick_gelu',
    }
    text = tower | {'max_position_embeddings': LENGTH, 'vocab_size': V, 'eos_token_id': V - 1}
    vision = tower | {'image_size': SIZE, 'patch_size': PATCH}
    config = {'model_type': 'clip', 'projection_dim': E, 'text_config': text, 'vision_config': vision}
    return changed(config, dict(changes))


def open_clip_config(**changes):
    vision = {'image_size': SIZE, 'layers': LAYERS, 'width': WIDTH, 'patch_size': PATCH, 'head_width': WIDTH // HEADS}
    text = {'context_length': LENGTH, 'vocab_size': V, 'width': WIDTH, 'heads': HEADS, 'layers': LAYERS}
    model = {'embed_dim': E, 'quick_gelu': True, 'vision_cfg': vision, 'text_cfg': text} | changes
    return {'model_cfg': model, 'preprocess_cfg': {'mean': list(CLIP_MEAN), 'std': list(CLIP_DEVIATION)}}


def write(folder, tensors, config, scheme='hugging_face'):
    folder.mkdir(exist_ok=True)
    prefix = '' if scheme == 'hugging_face' else 'open_clip_'
    (folder / f'{prefix}config.json').write_text(json.dumps(config))
    save_file(tensors, folder / f'{prefix}model.safetensors')
    write_merges(folder)
    return str(folder)


def write_published(folder, size=SIZE, max_length=77) -> str:
    """Writes a folder of Hugging Face, of a tiny CLIP that reads images and texts of some size."""
    sizes = {'vision_config.image_size': size, 'text_config.max_position_embeddings': max_length}
    return write(folder, hugging_face(size=size, length=max_length), hugging_face_config(sizes))


@dataclasses.dataclass
class Example:
    """Images and texts, as both libraries read them."""

    pixels: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def make(cls, image_size: int, vocab_size: int, length: int) -> 'Example':
        rng = np.random.default_rng(2)
        lengths = np.array([length, 4, 7], np.int32)
        ids = rng.integers(3, vocab_size - 2, (3, length))
        ids[:, 0] = vocab_size - 2
        ids[np.arange(3), lengths - 1] = vocab_size - 1
        ids[np.arange(length) >= lengths[:, None]] = 0
        return cls(rng.integers(0, 256, (3, image_size, image_size, 3), np.uint8), ids, lengths)

    def encode(self, published):
        model = make_model(published.model, len(published.vocabulary))

        def encode(matcher):
            texts = Texts(self.ids.astype(np.int32), self.lengths)
            return matcher.encode_image(Images(pixels=self.pixels)), matcher.encode_text(texts), matcher.temperature

        images, texts, temperature = jax.jit(lambda v: model.apply(v, method=encode))(published.variables)
        return images, texts, images @ texts.T / temperature


def assert_agree(vectors, images, texts, scale):
    images, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images.numpy(), texts.numpy()))
    for ours, theirs in zip(vectors, (images, texts, scale * images @ texts.T), strict=True):
        assert_within('CLIP', ours, theirs)
