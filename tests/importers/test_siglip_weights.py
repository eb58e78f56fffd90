import json
import re

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.data.text.pieces import Subwords
from jitm.errors import UserError
from jitm.importers.siglip_weights import NAMES, load_siglip, read_config
from jitm.importers.tensors import export
from jitm.losses import sigmoid_contrastive
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.importers.test_clip_weights import PROCESSOR, draw
from tests.parity.bounds import assert_within
from tests.support.pieces import PIECES, write_bpe, write_model

WIDTH, HEADS, LAYERS, PATCH, SIZE, LENGTH = 16, 2, 2, 8, 20, 6  # of 20 pixels, 16 are read
V = len(PIECES)
TOWER = {
    'hidden_size': WIDTH,
    'intermediate_size': 24,
    'num_hidden_layers': LAYERS,
    'num_attention_heads': HEADS,
}


def siglip_config(**changes):
    text = TOWER | {'max_position_embeddings': LENGTH, 'vocab_size': V, 'projection_size': WIDTH}
    config = {'model_type': 'siglip', 'text_config': text}
    config['vision_config'] = TOWER | {'image_size': SIZE, 'patch_size': PATCH}
    for key, value in changes.items():
        section, _, name = key.rpartition('__')
        (config[section] if section else config)[name] = value
    return config


def write(folder, config):
    """Writes a folder of Hugging Face with random tensors; returns its path and the variables."""
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    write_model(folder / 'spiece.model')
    model, _ = read_config(folder / 'config.json')
    model['text']['pad'] = 1
    variables = draw(model, V)
    tensors = {name: x.reshape(1) if 'logit' in name else x for name, x in export(variables, NAMES).items()}
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / 'model.safetensors')
    return str(folder), variables


def test_tensors_become_parameters(tmp_path):
    path, variables = write(tmp_path, siglip_config())
    published = load_siglip(path)
    chex.assert_trees_all_equal(published.variables['params'], variables['params'])
    model = published.model
    assert (model['name'], model['embed_dim'], model['initial_bias']) == ('clip.SigLIP', WIDTH, -10)
    assert (model['image']['activation'], model['image']['mean']) == ('gelu_tanh', (0.5, 0.5, 0.5))
    assert (model['text']['max_length'], model['text']['pad']) == (LENGTH, 1)
    assert published.resizing == {'short_side': 0, 'interpolation': 'bicubic'}
    assert published.vocabulary == Subwords.load(f'{path}/spiece.model', LENGTH)
    by_file = load_siglip(f'{path}/model.safetensors', published.vocabulary_path)
    chex.assert_trees_all_equal(by_file.variables, published.variables)


def test_siglip_2_pads_with_its_own_piece(tmp_path):
    path, _ = write(tmp_path, siglip_config())
    (tmp_path / 'spiece.model').unlink()
    write_bpe(tmp_path / 'tokenizer.json', V)
    processor = {**PROCESSOR, 'do_center_crop': None, 'size': {'height': SIZE, 'width': SIZE}, 'resample': 2}
    (tmp_path / 'preprocessor_config.json').write_text(json.dumps(processor | {'crop_size': None}))
    published = load_siglip(path)
    assert published.model['text']['pad'] == 0
    assert published.resizing == {'short_side': 0, 'interpolation': 'bilinear'}


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'model_type': 'siglip2'}, "has 'model_type' 'siglip2'; it must be siglip"),
        (
            {'text_config__hidden_act': 'relu'},
            "has 'text_config.hidden_act' 'relu'; use one of gelu_pytorch_tanh, gelu",
        ),
        ({'vision_config__layer_norm_eps': 1e-5}, "has 'vision_config.layer_norm_eps' 1e-05; it must be 1e-06"),
        ({'vision_config__vision_use_head': False}, "has 'vision_config.vision_use_head' False; it must be True"),
        ({'text_config__vocab_size': None}, "has 'text_config.vocab_size' None; it must be an integer"),
        ({'text_config_dict': {'a': 1}}, "has 'text_config_dict' {'a': 1}, which jitm does not know"),
        ({'text_config__num_hidden_layers': 3}, 'lacks tensors (text_model.encoder.layers.2'),
        (
            {'text_config__max_position_embeddings': 7},
            "tensor 'text_model.embeddings.position_embedding.weight' of shape",
        ),
    ],
)
def test_other_models_are_refused(tmp_path, config, message):
    path, _ = write(tmp_path, siglip_config())
    (tmp_path / 'config.json').write_text(json.dumps(siglip_config(**config)))
    with pytest.raises(UserError, match=re.escape(message)):
        load_siglip(path)


def test_other_files_are_refused(tmp_path):
    path, _ = write(tmp_path, siglip_config())
    (tmp_path / 'preprocessor_config.json').write_text('{"size": {"shortest_edge": 20}}')
    with pytest.raises(
        UserError, match=r"has 'size' {'shortest_edge': 20}; use one of {'height': 20, 'width': 20}, None: give"
    ):
        load_siglip(path)
    (tmp_path / 'preprocessor_config.json').unlink()
    write_model(tmp_path / 'spiece.model', PIECES[:-1])
    with pytest.raises(UserError, match=f'has {V - 1} pieces, but .* has {V}: give its own tokenizer'):
        load_siglip(path)
    (tmp_path / 'spiece.model').unlink()
    with pytest.raises(UserError, match=r'has no spiece.model or tokenizer.json: add the one'):
        load_siglip(path)


# The length of the longest text: a cut one, and one with padding.
@pytest.mark.needs('transformers', 'torch')
@pytest.mark.parametrize('length', [LENGTH, pytest.param(4, marks=pytest.mark.slow)])
def test_agrees_with_transformers(tmp_path, length):
    """Towers, logits and loss."""
    import torch
    import transformers

    config = siglip_config(text_config__num_attention_heads=4, text_config__hidden_size=20)
    theirs = transformers.SiglipModel(transformers.SiglipConfig(**config))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():  # so that every part of the formulas shows
            parameter.add_(0.2 * torch.randn_like(parameter))
        theirs.logit_scale.fill_(np.log(10.0))
        theirs.logit_bias.fill_(-3.0)
    theirs.eval().save_pretrained(tmp_path / 'siglip')
    write_model(tmp_path / 'siglip' / 'spiece.model')
    published = load_siglip(str(tmp_path / 'siglip'))

    rng, lengths = np.random.default_rng(0), np.array([length, 2, 3], np.int32)
    pixels = rng.integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    ids = rng.integers(2, V, (3, LENGTH)).astype(np.int32)
    ids[np.arange(LENGTH) >= lengths[:, None] - 1] = 1  # the end and the padding
    inputs = {'input_ids': torch.tensor(ids), 'pixel_values': torch.tensor(pixels.transpose(0, 3, 1, 2) / 127.5 - 1)}
    inputs['pixel_values'] = inputs['pixel_values'].float()
    model = make_model(published.model, V)
    positives = np.eye(3, dtype=bool)

    def run(matcher):
        images, texts = (
            matcher.encode_image(Images(pixels=pixels)),
            matcher.encode_text(Texts(ids[:, :length], lengths)),
        )
        cells, scores = matcher.image.features(Images(pixels=pixels)), matcher.similarity(images, texts)
        learned = {'temperature': matcher.temperature, 'bias': matcher.bias}
        loss = sigmoid_contrastive(scores, positives, **learned).mean()
        return images, texts, scores / matcher.temperature + matcher.bias, loss, cells

    def loss(variables):
        return model.apply(variables, method=run)[3]

    got = jax.jit(lambda v: model.apply(v, method=run))(published.variables)
    gradient = export(jax.jit(jax.grad(loss))({'params': published.variables['params']}), NAMES)
    out = theirs(**inputs, return_loss=True)
    out.loss.backward()
    states = out.vision_model_output.last_hidden_state
    for one, other in zip(
        got, (out.image_embeds, out.text_embeds, out.logits_per_image, out.loss, states), strict=True
    ):
        assert_within('SigLIP', one, other)
    for name, parameter in theirs.named_parameters():
        assert_within('SigLIP', gradient[name].reshape(parameter.shape), parameter.grad)
