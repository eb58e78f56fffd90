"""Folders of image-text models and networks that the libraries write are read as these read them, or refused."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import open_clip
import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf, save_for_hf

from jitm.data.text.pieces import BPE
from jitm.errors import UserError
from jitm.importers.blip_weights import load_blip
from jitm.importers.clip_weights import load_clip
from jitm.importers.cnn_weights import load_network
from jitm.importers.siglip_weights import load_siglip
from jitm.layers.convolutions import normalize_pixels
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.parity.bounds import assert_within
from tests.support.blip import WORDS as BLIP_WORDS
from tests.support.clip import write_merges
from tests.support.networks import check_parity, network, pixels, randomize, shapes, theirs
from tests.support.pieces import PIECES, write_model

pytestmark = pytest.mark.needs('torch', 'transformers', 'timm', 'open_clip')

MERGES = ('t h', 'th e</w>', 'd o', 'do g</w>')
WORDS = BPE.of(MERGES).words
SIZE, LENGTH = 16, 10
CAPTIONS = ('The dog', 'the DOG, the Thé dog the the the the', 'a')
PHOTOS = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
TOWER = {'hidden_size': 16, 'intermediate_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 2}
TEXT = TOWER | {'vocab_size': len(WORDS), 'max_position_embeddings': LENGTH, 'eos_token_id': len(WORDS) - 1}
IMAGE = TOWER | {'image_size': SIZE, 'patch_size': 8}
OTHER = {'image_mean': [0.1, 0.2, 0.3], 'image_std': [0.5, 0.6, 0.7]}


def spread(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # initial biases of 0 and scales of 1 would hide a mistake
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def write_clip(folder, *, text=(), image=(), processor=(), tokenizer=(), shard='1GB', **config):
    """Writes a random CLIP by transformers, and returns its folder."""
    towers = {'text_config': TEXT | dict(text), 'vision_config': IMAGE | dict(image)}
    model = spread(transformers.CLIPModel(transformers.CLIPConfig(**{'projection_dim': 12} | towers | config)))
    model.save_pretrained(folder, max_shard_size=shard)
    pairs = [tuple(merge.split()) for merge in MERGES]
    ids = {word: number for number, word in enumerate(WORDS)}
    pieces = transformers.CLIPTokenizer(vocab=ids, merges=pairs, **{'model_max_length': LENGTH} | dict(tokenizer))
    sizes = {'size': {'shortest_edge': SIZE}, 'crop_size': {'height': SIZE, 'width': SIZE}}
    photos = transformers.CLIPImageProcessor(**sizes | dict(processor))
    transformers.CLIPProcessor(image_processor=photos, tokenizer=pieces).save_pretrained(folder)
    return str(folder)


def write_siglip(folder, *, text=(), image=(), processor=(), tokenizer=(), shard='1GB', **config):
    """Writes a random SigLIP by transformers, and returns its folder."""
    sizes = {'vocab_size': len(PIECES), 'max_position_embeddings': LENGTH}
    towers = {'text_config': TOWER | sizes | dict(text), 'vision_config': IMAGE | dict(image)}
    model = spread(transformers.SiglipModel(transformers.SiglipConfig(**towers | config)))
    model.save_pretrained(folder, max_shard_size=shard)
    model_file = write_model(folder / 'pieces.model')
    options = {'model_max_length': LENGTH, 'model_input_names': ['input_ids']}  # no mask, as published
    pieces = transformers.SiglipTokenizer(model_file, **options | dict(tokenizer))
    photos = transformers.SiglipImageProcessor(**{'size': {'height': SIZE, 'width': SIZE}} | dict(processor))
    transformers.SiglipProcessor(image_processor=photos, tokenizer=pieces).save_pretrained(folder)
    return str(folder)


def vectors_by_transformers(folder, padding):
    """The unit vectors of the photos and the captions."""
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    photos = [Image.fromarray(photo) for photo in PHOTOS]
    options = {'padding': padding, 'truncation': True, 'max_length': LENGTH, 'return_tensors': 'pt'}
    with torch.no_grad():
        out = model(**processor(images=photos, text=list(CAPTIONS), **options))
    return out.image_embeds, out.text_embeds


def vectors_by_jitm(published):
    """The same by the model that an importer returns."""
    tokens = [published.vocabulary.encode(caption) for caption in CAPTIONS]
    lengths = np.array([len(ids) for ids in tokens], np.int32)
    texts = Texts(np.stack([np.pad(ids, (0, lengths.max() - len(ids))) for ids in tokens]), lengths)
    model = make_model(published.model, len(published.vocabulary))
    images = model.apply(published.variables, Images(pixels=PHOTOS), method='encode_image')
    return images, model.apply(published.variables, texts, method='encode_text')


GELU = {'hidden_act': 'gelu'}
READ_CLIP = {
    'default': {},
    'gelu': {'text': GELU, 'image': GELU},
    'mixed': {'image': GELU | {'patch_size': 4, 'num_attention_heads': 4}, 'processor': OTHER},
    'wide': {'text': {'hidden_size': 24, 'intermediate_size': 20}, 'projection_dim': 20, 'shard': '10KB'},
    'old_end': {'text': {'eos_token_id': 2}},
}


@pytest.mark.parametrize('kind', READ_CLIP)
def test_a_clip_is_read(tmp_path, kind):
    folder = write_clip(tmp_path, **READ_CLIP[kind])
    assert (tmp_path / 'model.safetensors.index.json').is_file() == (kind == 'wide')
    assert_within('CLIP', vectors_by_jitm(load_clip(folder)), vectors_by_transformers(folder, True))


NEW = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized', 'special'), False)
NEW |= {'id': 518, 'content': '<new>'}
START = {'bos_token': '<|endoftext|>'}
LEFT = {'direction': 'Left', 'max_length': LENGTH, 'strategy': 'LongestFirst', 'stride': 0}


@pytest.mark.parametrize(
    ('tokenizer', 'file', 'changes', 'message'),
    [
        (START, 'tokenizer.json', {}, "has 'post_processor.cls' ['<|endoftext|>', 517]; it must"),
        (
            {},
            'tokenizer.json',
            {'normalizer': {'type': 'Lowercase'}},
            "has 'normalizer' {'type': 'Lowercase'}; it must",
        ),
        ({}, 'tokenizer.json', {'pre_tokenizer': {'type': 'Whitespace'}}, "has 'pre_tokenizer' {'type': 'Whitespace'}"),
        ({}, 'tokenizer.json', {'post_processor': None}, "has 'post_processor' None; it must be"),
        ({}, 'tokenizer.json', {'truncation': LEFT}, "has 'truncation.direction' 'Left'; it must be Right"),
        ({}, 'tokenizer.json', {'added_tokens': [NEW]}, "adds the token '<new>'"),
        ({}, 'adapter_config.json', {'peft_type': 'LORA'}, 'has an adapter (adapter_config.json) beside its weights'),
    ],
)
def test_another_clip_is_refused(tmp_path, tokenizer, file, changes, message):
    """Other configs are in tests/importers."""
    folder = write_clip(tmp_path, tokenizer=tokenizer)
    path = tmp_path / file
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | changes))
    with pytest.raises(UserError, match=re.escape(message)):
        load_clip(folder)


def test_image_processors_that_differ_are_refused(tmp_path):
    folder = write_clip(tmp_path, processor=OTHER)
    photos = json.loads((tmp_path / 'processor_config.json').read_text())['image_processor']
    (tmp_path / 'preprocessor_config.json').write_text(json.dumps(photos))
    assert load_clip(folder).model['image']['mean'] == (0.1, 0.2, 0.3)
    transformers.CLIPImageProcessor(size={'shortest_edge': SIZE}, crop_size=SIZE).save_pretrained(folder)
    with pytest.raises(UserError, match=r'processor_config\.json differ in mean, deviation or interpolation: remove'):
        load_clip(folder)


READ_SIGLIP = {
    'default': {},
    'bilinear': {'processor': OTHER | {'resample': 2}, 'image': {'patch_size': 4}},
    'gelu': {'text': GELU, 'image': GELU, 'shard': '10KB'},
}


@pytest.mark.needs('sentencepiece')
@pytest.mark.parametrize('kind', READ_SIGLIP)
def test_a_siglip_is_read(tmp_path, kind):
    folder = write_siglip(tmp_path, **READ_SIGLIP[kind])
    published = load_siglip(folder)
    assert published.resizing['interpolation'] == ('bilinear' if kind == 'bilinear' else 'bicubic')
    assert_within('SigLIP', vectors_by_jitm(published), vectors_by_transformers(folder, 'max_length'))


@pytest.mark.needs('sentencepiece')
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'tokenizer': {'do_lower_case': False}}, "has 'do_lower_case' False; it must be True"),
        ({'tokenizer': {'model_input_names': ['input_ids', 'attention_mask']}}, 'has attention_mask in'),
        ({'processor': {'do_rescale': False}}, "has 'image_processor.do_rescale' False; use one of True, None"),
    ],
)
def test_another_siglip_is_refused(tmp_path, changes, message):
    folder = write_siglip(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        load_siglip(folder)


def test_a_blip_is_read(tmp_path):
    words = ['[MASK]' if word == 'w0' else word for word in BLIP_WORDS]
    text = TOWER | {'vocab_size': len(words), 'max_position_embeddings': LENGTH, 'encoder_hidden_size': 16}
    config = transformers.BlipConfig(text_config=text, vision_config=IMAGE, image_text_hidden_size=8)
    model = spread(transformers.BlipForImageTextRetrieval(config))
    model.save_pretrained(tmp_path)
    pieces = transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    photos = transformers.BlipImageProcessor(size={'height': SIZE, 'width': SIZE}, **OTHER)
    processor = transformers.BlipProcessor(photos, pieces)
    processor.save_pretrained(tmp_path)
    images = [Image.fromarray(photo) for photo in PHOTOS]
    with torch.no_grad():
        inputs = processor(images=images, text=['a red ring', 'blue'], padding=True, return_tensors='pt')
        cosines = model(**inputs, use_itm_head=False).itm_score
    published = load_blip(str(tmp_path))
    ids = inputs['input_ids'].numpy().astype(np.int32)
    ids[:, 0] = ids[0, 0]
    texts = Texts(ids, inputs['attention_mask'].numpy().sum(1).astype(np.int32))
    ours = make_model(published.model, len(published.vocabulary))
    encoded = [
        ours.apply(published.variables, Images(pixels=PHOTOS), method='encode_image'),
        ours.apply(published.variables, texts, method='encode_text'),
    ]
    assert_within('BLIP', ours.apply(published.variables, *encoded, method='similarity'), cosines)


def test_every_field_of_open_clip_is_known(tmp_path):
    """A config with all defaults of its classes is that of the few keys that most files have."""
    models = []
    for complete in (False, True):
        image = {'image_size': SIZE, 'width': 16, 'head_width': 8, 'layers': 2, 'patch_size': 8}
        text = {'context_length': LENGTH, 'vocab_size': len(WORDS), 'width': 16, 'heads': 2, 'layers': 2}
        pixels = {'mean': [0.1, 0.2, 0.3], 'size': SIZE}
        torch.manual_seed(0)
        model = open_clip.CLIP(embed_dim=12, vision_cfg=image, text_cfg=text)
        if complete:
            image = dataclasses.asdict(open_clip.CLIPVisionCfg(**image))
            text = dataclasses.asdict(open_clip.CLIPTextCfg(**text))
            pixels = dataclasses.asdict(open_clip.transform.PreprocessCfg(**pixels))
        config = {'embed_dim': 12, 'vision_cfg': image, 'text_cfg': text}
        content = {'model_cfg': config, 'preprocess_cfg': pixels}
        (tmp_path / 'open_clip_config.json').write_text(json.dumps(content))
        save_file(spread(model).state_dict(), tmp_path / 'open_clip_model.safetensors')
        write_merges(tmp_path, MERGES)
        models.append(load_clip(str(tmp_path)))
    assert models[0].model == models[1].model
    with torch.no_grad():
        normalized = normalize_pixels(jnp.asarray(PHOTOS), (0.1, 0.2, 0.3), models[0].model['image']['deviation'])
        images = model.encode_image(torch.tensor(np.asarray(normalized).transpose(0, 3, 1, 2)), normalize=True)
    assert_within('CLIP', vectors_by_jitm(models[1])[0], images)


def write_network(folder, name, weights=True, data_config=None, **options):
    """Writes a random network, or its config alone, by timm; returns it."""
    model = randomize(timm.create_model(name, pretrained=False, **options))
    if weights:
        save_for_hf(model, folder, safe_serialization=True)
    else:
        save_config_for_hf(model, str(folder / 'config.json'), data_config=data_config)
    return model


READ_NETWORKS = {
    'tf_efficientnet_lite0': ('lite-0', {}),
    'tf_efficientnet_lite4': ('lite-4', {}),
    'resnet18': ('resnet-18', {}),
    'resnet18 without classifier': ('resnet-18', {'num_classes': 0}),
    'resnet50': ('resnet-50', {}),
}


@pytest.mark.parametrize('name', READ_NETWORKS)
def test_a_network_of_timm_is_read(tmp_path, name):
    kind, options = READ_NETWORKS[name]
    model = write_network(tmp_path, name.split()[0], **options)
    x = pixels((96, 64))
    check_parity(tmp_path, kind, theirs(model.forward_features, x, network(kind)), x, pooled=False)


REFUSED_NETWORKS = {
    'efficientnet_lite0': ('lite-0', {}, "has 'architecture' 'efficientnet_lite0'; use one of vgg19, resnet18"),
    'resnetaa50': ('resnet-50', {}, "has 'architecture' 'resnetaa50'"),
    'resnetblur50': ('resnet-50', {}, "has 'architecture' 'resnetblur50'"),
    'resnet18 dilated': ('resnet-18', {'output_stride': 8}, "has 'model_args.output_stride' 8, which jitm does not"),
    'resnet18 gray': ('resnet-18', {'in_chans': 1}, "has 'model_args.in_chans' 1; it must be 3"),
    'resnet18 max': ('resnet-18', {'global_pool': 'max'}, "has 'global_pool' 'max'; it must be avg"),
    'resnet18 pixels': (
        'resnet-18',
        {'data_config': {'mean': (0.5, 0.5, 0.5)}},
        'normalizes photos by (0.5, 0.5, 0.5), but',
    ),
}


@pytest.mark.parametrize('name', REFUSED_NETWORKS)
def test_another_network_of_timm_is_refused(tmp_path, name):
    kind, options, message = REFUSED_NETWORKS[name]
    write_network(tmp_path, name.split()[0], weights=False, **options)
    with pytest.raises(UserError, match=re.escape(message)):
        load_network(str(tmp_path), *shapes(kind))


@pytest.mark.parametrize('key', ['downsample_in_bottleneck', 'downsample_in_first_stage'])
def test_another_resnet_of_transformers_is_refused(tmp_path, key):
    transformers.ResNetConfig(**{key: True}).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"config\.json has '{key}' True; it must be False: give the weights"):
        load_network(str(tmp_path), *shapes('resnet-50'))
