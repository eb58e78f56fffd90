"""Our CLIP under published names, against the tables of test_clip.py and against both libraries."""

import itertools
import json

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

from jitm.data.bpe import BPE
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.importers import tensors
from jitm.importers.clip import OPENAI_RESIDUAL, load_clip
from jitm.importers.clip_config import read_config
from jitm.importers.clip_export import export_clip
from jitm.importers.released import shapes_of
from jitm.types import Images
from tests.importers import test_clip as published

WEIGHTS = {'clip': 'open_clip_model.safetensors', 'clip_transformers': 'model.safetensors'}


def write_files(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def export(target, model):
    return export_clip(target, model.model, model.variables, model.vocabulary)


@pytest.fixture(scope='module')
def vit(tmp_path_factory):
    changes = {'text_config__hidden_act': 'gelu', 'vision_config__hidden_act': 'gelu'}
    folder = tmp_path_factory.mktemp('published') / 'vit'
    written = published.write(folder, published.hugging_face(), published.hugging_face_config(**changes))
    (folder / 'preprocessor_config.json').write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.5, 1]}')
    return load_clip(written)


@pytest.fixture(scope='module')
def residual(tmp_path_factory):
    config = published.open_clip_config(vision_cfg=published.RESNET)
    folder = tmp_path_factory.mktemp('published') / 'residual'
    published.write(folder, {}, config, 'open_clip')
    section = read_config(folder / 'open_clip_config.json')
    pixels = np.zeros((1, 64, 64, 3), np.uint8)
    rng = np.random.default_rng(0)
    shapes = shapes_of(section, published.V, Images(pixels=pixels))
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return load_clip(published.write(folder, tensors.export(variables, OPENAI_RESIDUAL), config, 'open_clip'))


@pytest.mark.parametrize(('kind', 'target'), [('vit', 'clip'), ('vit', 'clip_transformers'), ('residual', 'clip')])
def test_names_and_bits_survive_both_directions(tmp_path, request, kind, target):
    model = request.getfixturevalue(kind)
    files = export(target, model)
    again = load_clip(write_files(tmp_path / 'exported', files))
    chex.assert_trees_all_equal(again.variables, model.variables)
    assert (again.model, again.vocabulary) == (model.model, model.vocabulary)
    got, tensors = load_tensors(files[WEIGHTS[target]]), published.hugging_face()
    if kind == 'vit':
        chex.assert_trees_all_equal(got, published.open_clip(tensors) if target == 'clip' else tensors)
    else:
        assert {'visual.attnpool.positional_embedding', 'visual.layer2.1.conv3.weight', 'ln_final.bias'} <= got.keys()
        assert not any(name.startswith('vision_model') for name in got)


def test_hidden_sizes_that_are_no_multiple_survive(vit):
    for hidden, mlp in ((3, 10), (48, 100), (7, 9)):
        tower = {'hidden_dim': hidden, 'mlp_dim': mlp, 'num_heads': 1}
        model = vit.model | {side: vit.model[side] | tower for side in ('image', 'text')}
        files = export_clip('clip', model, {'params': {}}, vit.vocabulary)
        config = json.loads(files['open_clip_config.json'])['model_cfg']
        assert int(hidden * config['text_cfg']['mlp_ratio']) == mlp


@pytest.mark.parametrize(
    ('target', 'change', 'vocabulary', 'message'),
    [
        ('clip', {'name': 'scan.SCAN'}, None, "the run has the model 'scan.SCAN', which is not CLIP"),
        ('clip', {}, Vocabulary(('<pad>', '<start>', '<end>', '<unk>')), 'the run reads no byte pairs'),
        ('clip_transformers', {'image': {'name': 'clip_resnet.ModifiedResNet'}}, None, 'convert it --to clip'),
        ('clip', {'text': {'activation': 'gelu_tanh'}}, None, "the activation 'gelu_tanh'; CLIP has gelu, quick_gelu"),
        ('clip', {'text': {'activation': 'quick_gelu'}}, None, 'convert it --to clip_transformers'),
    ],
)
def test_what_they_have_not_is_not_written(vit, target, change, vocabulary, message):
    model = dict(vit.model)
    for key, value in change.items():
        model[key] = model[key] | value if isinstance(value, dict) else value
    with pytest.raises(UserError, match=message):
        export_clip(target, model, vit.variables, vocabulary or vit.vocabulary)


def full_size_vocabulary():
    characters = BPE.of(()).words[:256]
    return BPE.of(tuple(f'{a} {b}' for a, b in itertools.product(characters, characters))[:48894])


@pytest.fixture
def whole_vocabulary(vit):
    """The model with the number of byte pairs of CLIP, which the tokenizers of both libraries need."""
    words = full_size_vocabulary()
    params = vit.variables['params']
    embedding = np.random.default_rng(0).normal(size=(len(words), published.WIDTH)).astype(np.float32)
    text = params['text'] | {'words': {'embedding': embedding}}
    variables = {'params': params | {'text': text, 'logit_scale': np.log(np.float32(100))}, 'batch_stats': {}}
    return vit._replace(variables=variables, vocabulary=words)


def test_transformers_reads_the_folder(tmp_path, whole_vocabulary):
    transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
    folder = write_files(tmp_path / 'exported', export('clip_transformers', whole_vocabulary))
    model, info = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    example = published.Example.make(published.SIZE, 49408, published.LENGTH)
    photos = torch.tensor(np.ascontiguousarray(example.pixels.transpose(0, 3, 1, 2)))
    processor = transformers.CLIPImageProcessor.from_pretrained(folder)
    pixels = processor(photos, return_tensors='pt')['pixel_values']
    mask = torch.tensor(np.arange(published.LENGTH) < example.lengths[:, None]).long()
    with torch.no_grad():
        out = model(input_ids=torch.tensor(example.ids), attention_mask=mask, pixel_values=pixels)
    published.assert_agree(example.encode(whole_vocabulary), out.image_embeds, out.text_embeds, 100.0)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    caption = 'A dog, on the GRASS!'
    assert tokenizer(caption)['input_ids'] == whole_vocabulary.vocabulary.encode(caption).tolist()


def test_open_clip_reads_the_folder(tmp_path, whole_vocabulary):
    open_clip, torch = pytest.importorskip('open_clip'), pytest.importorskip('torch')
    folder = write_files(tmp_path / 'exported', export('clip', whole_vocabulary))
    model, _, preprocess = open_clip.create_model_and_transforms(f'local-dir:{folder}')
    example = published.Example.make(published.SIZE, 49408, published.LENGTH)
    image = pytest.importorskip('PIL.Image')
    pixels = torch.stack([preprocess(image.fromarray(x)) for x in example.pixels])
    with torch.no_grad():
        images, texts = model.eval().encode_image(pixels), model.encode_text(torch.tensor(example.ids))
    published.assert_agree(example.encode(whole_vocabulary), images, texts, 100.0)
