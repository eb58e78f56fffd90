"""BLIP: the golden numbers of a tiny model, transformers, and the layout of the authors' files."""

import functools
import json
import re

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.data.text.blip_pieces import BLIP_PIECES
from jitm.data.text.wordpiece import SPECIAL_PIECES
from jitm.errors import UserError
from jitm.importers.blip_weights import EPSILON, NAMES, load_blip
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.importers.torch_pickles import dense, write_zip
from tests.parity.bounds import assert_within

V = 40
READ = ('a', 'red', 'ring', 'above', 'blue', 'square')
WORDS = (*SPECIAL_PIECES, *READ, *(f'w{n}' for n in range(V - 12)), *BLIP_PIECES)
TOWER = {'num_attention_heads': 2, 'num_hidden_layers': 2}
TEXT = TOWER | {'vocab_size': V, 'hidden_size': 16, 'intermediate_size': 32, 'max_position_embeddings': 12}
IMAGE = TOWER | {'hidden_size': 24, 'intermediate_size': 48, 'image_size': 32, 'patch_size': 16}
IDS = np.array([[5, 7, 9, 11, 2, 0, 0], [5, 8, 6, 4, 3, 12, 2]], np.int32)
TEXTS = Texts(IDS, np.count_nonzero(IDS, axis=1).astype(np.int32))


def blip_config(**changes):
    config = {
        'model_type': 'blip',
        'image_text_hidden_size': 8,
        'text_config': dict(TEXT),
        'vision_config': dict(IMAGE),
    }
    for key, value in changes.items():
        section, _, name = key.rpartition('__')
        (config[section] if section else config)[name] = value
    return config


def write_folder(folder, config, words=WORDS):
    """Writes the config, the vocabulary and how pixels are prepared."""
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'vocab.txt').write_text('\n'.join(words) + '\n')
    size = {'height': config['vision_config']['image_size'], 'width': config['vision_config']['image_size']}
    # Pixels are read as they are.
    pixels = {'size': size, 'resample': 3, 'image_mean': [0, 0, 0], 'image_std': [1 / 255] * 3}
    (folder / 'preprocessor_config.json').write_text(json.dumps(pixels))


@functools.cache
def published_tensors(image_size=32, max_length=12):
    """Tensors of the tiny model with the names and the shapes of Hugging Face: sines of their places."""
    tower = {'num_layers': 2, 'num_heads': 2, 'activation': 'gelu', 'dtype': 'float32'}
    image = {'name': 'blip.NormalizedViT', 'hidden_dim': 24, 'mlp_dim': 48, 'image_size': image_size, 'patch_size': 16}
    image |= {'mean': (0.0, 0.0, 0.0), 'deviation': (1.0, 1.0, 1.0)}
    text = {'name': 'blip.MultimodalBERT', 'hidden_dim': 16, 'mlp_dim': 32, 'max_length': max_length}
    model = {'name': 'blip.BLIP', 'embed_dim': 8, 'image': image | tower, 'text': text | tower}
    shapes = shapes_of(model, V, Images(pixels=np.zeros((1, image_size, image_size, 3), np.uint8)))
    tensors = export(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes), NAMES)
    for number, name in enumerate(sorted(tensors)):
        shape = tensors[name].shape
        filled = 0.2 * np.sin(number + 0.37 * np.arange(tensors[name].size))
        filled += bool('norm' in name.lower() and name.endswith('weight'))
        shape = (1, *shape) if name.endswith('position_embedding') else shape
        shape = (1, 1, *shape) if name.endswith('class_embedding') else shape
        tensors[name] = filled.astype(np.float32).reshape(shape)
    return tensors


def write_published(folder, image_size=32, max_length=12, **changes):
    """Writes a folder of Hugging Face; returns its path."""
    sizes = {'vision_config__image_size': image_size, 'text_config__max_position_embeddings': max_length}
    write_folder(folder, blip_config(**sizes | changes))
    save_file(published_tensors(image_size, max_length), folder / 'model.safetensors')
    return str(folder)


def outputs(published, first_pieces=None):
    """The cosines, the logits of pairs (0, 0) and (1, 1), and the states of images.

    Args:
      published: The model.
      first_pieces: The piece that text n starts with instead of [ENC]: its embedding becomes that of [ENC]. Given as
        Hugging Face's model starts with the caption's own first piece.
    """
    model = make_model(published.model, V)
    pixels = np.sin(0.05 * np.arange(2 * 3 * 32 * 32)).astype(np.float32).reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    images = Images(pixels=pixels)

    @jax.jit
    def match(variables, image, text):
        def run(matcher):
            encoded = matcher.encode_image(image), matcher.encode_text(text)
            return matcher.read_pairs(*encoded, ('itm', 'rank'))

        return model.reranker.apply(variables, method=run)

    @jax.jit
    def vectors(variables):
        def run(matcher):
            encoded = matcher.encode_image(images), matcher.encode_text(TEXTS)
            return matcher.similarity(*encoded), matcher.image.states(images)

        return model.apply(variables, method=run)

    logits = []
    for n, piece in enumerate(first_pieces or (V - 1, V - 1)):
        changed = jax.tree.map(np.array, published.variables)
        words = changed['params']['text']['words']['embedding']
        words[V - 1] = words[piece]
        got = match(changed, Images(pixels=pixels[n : n + 1]), Texts(TEXTS.ids[n : n + 1], TEXTS.lengths[n : n + 1]))
        np.testing.assert_array_equal(got['rank'], got['itm'][:, 1])
        logits.append(got['itm'][0])
    return *vectors(published.variables), np.array(logits)


GOLDEN = {  # epsilon of the image tower -> logits of two pairs, cosines, the first numbers of the first state
    1e-5: (
        [[0.065086, 0.142022], [0.125941, 0.206959]],
        [[-0.001178, -0.015172], [-0.001086, -0.015102]],
        [0.057954, -0.996961, 2.032747, 1.196183],
    ),
    1e-6: (
        [[0.065091, 0.142027], [0.125944, 0.206962]],
        [[-0.001145, -0.015148], [-0.001055, -0.015080]],
        [0.056028, -0.997575, 2.036454, 1.190563],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [1e-5, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_golden_numbers(tmp_path, epsilon):
    """Of the formulas in float64, with each caption's own first piece."""
    assert len(published_tensors()) == 92
    path = write_published(tmp_path, vision_config__layer_norm_eps=epsilon)
    cosines, states, logits = outputs(load_blip(path), IDS[:, 0].tolist())
    for one, other in zip((logits, cosines, states[0, 0, :4]), GOLDEN[epsilon], strict=True):
        np.testing.assert_allclose(one, other, atol=1.5e-6)


@pytest.mark.needs('transformers', 'torch')
@pytest.mark.parametrize('epsilon', [1e-5, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_agrees_with_transformers(tmp_path, epsilon):
    """Cosines and logits; transformers gets the captions that start with [ENC] to match, and their own to compare."""
    import torch
    import transformers

    config = blip_config(vision_config__layer_norm_eps=epsilon, text_config__encoder_hidden_size=24)
    theirs = transformers.BlipForImageTextRetrieval(transformers.BlipConfig(**config))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():  # so that every part of the formulas shows
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.eval().save_pretrained(tmp_path)
    stated = json.loads((tmp_path / 'config.json').read_text())
    write_folder(tmp_path, config)
    (tmp_path / 'config.json').write_text(json.dumps(stated))
    published = load_blip(str(tmp_path))
    assert published.model['image']['epsilon'] == epsilon

    pixels = torch.tensor(np.sin(0.05 * np.arange(2 * 3 * 32 * 32)).reshape(2, 3, 32, 32)).float()
    matched = IDS.copy()
    matched[:, 0] = V - 1

    def call(ids, with_head):
        mask = torch.tensor(ids != 0)
        with torch.no_grad():
            return theirs(torch.tensor(ids).long(), pixels, use_itm_head=with_head, attention_mask=mask.long())

    out = call(matched, True)
    wanted = call(IDS, False).itm_score, out.last_hidden_state, out.itm_score
    for one, other in zip(outputs(published), wanted, strict=True):
        assert_within('BLIP', one, other)


AUTHORS = (  # Hugging Face's names -> the authors'
    (r'^vision_model\.embeddings\.class_embedding', 'visual_encoder.cls_token'),
    (r'^vision_model\.embeddings\.position_embedding', 'visual_encoder.pos_embed'),
    (r'^vision_model\.embeddings\.patch_embedding', 'visual_encoder.patch_embed.proj'),
    (r'^vision_model\.post_layernorm', 'visual_encoder.norm'),
    (r'^vision_model\.encoder\.layers', 'visual_encoder.blocks'),
    (r'\.self_attn\.qkv', '.attn.qkv'),
    (r'\.self_attn\.projection', '.attn.proj'),
    (r'\.layer_norm', '.norm'),
)


def write_pth(path, **others):
    """Writes a file of the authors, with the moving averages and queues of a fine-tuned model."""
    tensors = {
        functools.reduce(lambda name, rule: re.sub(*rule, name), AUTHORS, name): values
        for name, values in published_tensors().items()
    }
    averages = ('visual_encoder', 'text_encoder', 'vision_proj', 'text_proj')
    tensors |= {
        name.replace(part, f'{part}_m', 1): 0 * values
        for name, values in tensors.items()
        for part in averages
        if name.startswith(f'{part}.')
    }
    tensors |= {f'{side}_queue': np.zeros((8, 5), np.float32) for side in ('image', 'text')}
    tensors |= {'temp': np.float32(0.05), 'ptr_queue': np.zeros(1, np.int64), 'idx_queue': np.zeros((1, 5), np.int64)}
    tensors |= {'text_encoder.embeddings.position_ids': np.arange(12)[None]}
    write_zip(path, {'model': torch_tensors(tensors | others), 'epoch': 5})


def torch_tensors(tensors):
    return {
        name: dense(np.asarray(values), str(n), 'LongStorage' if values.dtype == np.int64 else 'FloatStorage')
        for n, (name, values) in enumerate(tensors.items())
    }


@pytest.mark.slow
def test_files_of_the_authors(tmp_path):
    """Sizes are those of the tensors; only heads of 64 numbers were released."""
    of_folder = load_blip(write_published(tmp_path / 'folder', vision_config__layer_norm_eps=1e-6))
    write_pth(tmp_path / 'model_base_retrieval_coco.pth')
    vocabulary = str(tmp_path / 'folder' / 'vocab.txt')
    published = load_blip(str(tmp_path / 'model_base_retrieval_coco.pth'), vocabulary)
    ours, theirs = (dict(one.variables['params']) for one in (published, of_folder))
    np.testing.assert_allclose(np.exp(-ours.pop('logit_scale')), 0.05, rtol=1e-6)
    np.testing.assert_allclose(np.exp(-theirs.pop('logit_scale')), 0.07, rtol=1e-6)
    heads = jax.tree.map(lambda x: x.size, ours)
    assert heads == jax.tree.map(lambda x: x.size, theirs)
    chex.assert_trees_all_equal(*(jax.tree.map(np.ravel, one) for one in (ours, theirs)))
    for tower in ('image', 'text'):
        same = of_folder.model[tower] | {'num_heads': 1}
        stated = {key: value for key, value in published.model[tower].items() if key not in ('mean', 'deviation')}
        assert stated == {key: same[key] for key in stated}
    assert published.model['image']['epsilon'] == EPSILON
    assert published.resizing == {'short_side': 0, 'interpolation': 'bicubic'}
    assert published.data['pixels'] == [0, 32, 32, 3]
    with pytest.raises(UserError, match=r'has no vocab.txt or tokenizer.json: add that of its BERT, or give --vocab'):
        load_blip(str(tmp_path / 'model_base_retrieval_coco.pth'))
    write_pth(tmp_path / 'other.pth', **{'text_decoder.bert.pooler.dense.bias': np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=r'has unknown tensors \(text_decoder.bert.pooler.dense.bias\)'):
        load_blip(str(tmp_path / 'other.pth'), vocabulary)


def test_pieces_of_the_bert_get_those_of_blip(tmp_path):
    path = write_published(tmp_path)
    write_folder(tmp_path, blip_config(), WORDS[:-2])
    assert load_blip(path).vocabulary.words == WORDS
    write_folder(tmp_path, blip_config(), WORDS[:-3])
    with pytest.raises(UserError, match=f'has {V - 1} pieces, but .* has {V}: give its own tokenizer'):
        load_blip(path)


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'model_type': 'blip-2'}, "has 'model_type' 'blip-2'; it must be blip"),
        ({'text_config__layer_norm_eps': 1e-5}, "has 'text_config.layer_norm_eps' 1e-05; it must be 1e-12"),
        ({'vision_config__layer_norm_eps': '1e-5'}, "has 'vision_config.layer_norm_eps' '1e-5'; it must be a number"),
        ({'text_config__num_hidden_layers': 3}, 'lacks tensors (text_encoder.encoder.layer.2'),
        ({'vision_config__image_size': 48}, "tensor 'vision_model.embeddings.position_embedding' of shape"),
    ],
)
def test_other_models_are_refused(tmp_path, config, message):
    path = write_published(tmp_path)
    write_folder(tmp_path, blip_config(**config))
    with pytest.raises(UserError, match=re.escape(message)):
        load_blip(path)


def test_photos_that_are_prepared_otherwise_are_refused(tmp_path):
    path = write_published(tmp_path)
    (tmp_path / 'preprocessor_config.json').write_text('{"do_center_crop": true}')
    with pytest.raises(UserError, match=r"has 'do_center_crop' True; use one of False, None: give another model"):
        load_blip(path)
