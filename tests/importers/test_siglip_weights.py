import json
import re

import chex
import jax
import numpy as np
import pytest

from jitm.data.text.pieces import Subwords
from jitm.errors import UserError
from jitm.importers.siglip_weights import NAMES, load_siglip
from jitm.importers.tensors import export
from jitm.losses import sigmoid_contrastive
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.parity.bounds import assert_within
from tests.support.clip import PROCESSOR
from tests.support.pieces import PIECES, write_bpe, write_model
from tests.support.siglip import LENGTH, SIZE, WIDTH, V, siglip_config, write


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
        ({'text_config.hidden_act': 'relu'}, "has 'text_config.hidden_act' 'relu'; use one of gelu_pytorch_tanh, gelu"),
        ({'vision_config.layer_norm_eps': 1e-5}, "has 'vision_config.layer_norm_eps' 1e-05; it must be 1e-06"),
        ({'vision_config.vision_use_head': False}, "has 'vision_config.vision_use_head' False; it must be True"),
        ({'text_config.vocab_size': None}, "has 'text_config.vocab_size' None; it must be an integer"),
        ({'text_config_dict': {'a': 1}}, "has 'text_config_dict' {'a': 1}, which jitm does not know"),
    ],
)
def test_other_models_are_refused(tmp_path, config, message):
    path, _ = write(tmp_path, siglip_config())
    (tmp_path / 'config.json').write_text(json.dumps(siglip_config(config)))
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


@pytest.mark.needs('transformers', 'torch')
def test_agrees_with_transformers(tmp_path):
    """Towers, logits and loss; tests/parity compares folders."""
    import torch
    import transformers

    config = siglip_config({'text_config.num_attention_heads': 4, 'text_config.hidden_size': 20})
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

    rng = np.random.default_rng(0)
    lengths = np.array([LENGTH, 2, 3], np.int32)
    images = Images(pixels=rng.integers(0, 256, (3, SIZE, SIZE, 3), np.uint8))
    ids = rng.integers(2, V, (3, LENGTH)).astype(np.int32)
    ids[np.arange(LENGTH) >= lengths[:, None] - 1] = 1  # the end and the padding
    pixels = torch.tensor(images.pixels.transpose(0, 3, 1, 2) / 127.5 - 1).float()
    model = make_model(published.model, V)

    def run(matcher):
        vectors = matcher.encode_image(images), matcher.encode_text(Texts(ids, lengths))
        scores = matcher.similarity(*vectors)
        learned = {'temperature': matcher.temperature, 'bias': matcher.bias}
        loss = sigmoid_contrastive(scores, np.eye(3, dtype=bool), **learned).mean()
        return loss, (*vectors, scores / matcher.temperature + matcher.bias, matcher.image.features(images))

    @jax.jit
    def differentiate(params):
        return jax.value_and_grad(lambda x: model.apply({'params': x}, method=run), has_aux=True)(params)

    (loss, outputs), gradient = differentiate(published.variables['params'])
    out = theirs(input_ids=torch.tensor(ids), pixel_values=pixels, return_loss=True)
    out.loss.backward()
    states = out.vision_model_output.last_hidden_state
    expected = out.loss, out.image_embeds, out.text_embeds, out.logits_per_image, states
    for array, tensor in zip((loss, *outputs), expected, strict=True):
        assert_within('SigLIP', array, tensor)
    gradients = export({'params': gradient}, NAMES)
    for name, parameter in theirs.named_parameters():
        assert_within('SigLIP', gradients[name].reshape(parameter.shape), parameter.grad)
