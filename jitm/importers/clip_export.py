"""Writes our CLIP as a folder of open_clip, with OpenAI's names, or of Hugging Face's transformers."""

import json
import math
from collections.abc import Mapping
from typing import Any

import chex
import numpy as np
import safetensors.numpy
from flax import traverse_util

from jitm.data.bpe import BPE, END, START
from jitm.data.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.importers import clip_names
from jitm.importers.clip_config import RESNET_CHANNELS
from jitm.importers.tensors import to_published
from jitm.layers.vit import EPSILON

OPEN_CLIP, TRANSFORMERS = TARGETS = ('clip', 'clip_transformers')
_RESIDUAL = 'clip_resnet.ModifiedResNet'


def export_clip(
    target: str, model: Mapping[str, Any], variables: Mapping[str, chex.ArrayTree], vocabulary: Tokenizer
) -> dict[str, bytes]:
    """Returns the files of a folder: the weights, the config and the tokenizer.

    Args:
      target: one of `TARGETS`: 'clip' for open_clip, 'clip_transformers' for Hugging Face.
      model: the config's `model`.
      variables: 'params' and 'batch_stats'.
      vocabulary: of its texts.

    Returns:
      Name of a file -> its content.

    Raises:
      UserError: if the model is no CLIP of this kind.
    """
    if model['name'] != 'clip.CLIP':
        raise UserError(f"the run has the model '{model['name']}', which is not CLIP")
    if not isinstance(vocabulary, BPE):
        raise UserError('the run reads no byte pairs, as CLIP does: convert it --to safetensors')
    if target == TRANSFORMERS and model['image']['name'] == _RESIDUAL:
        raise UserError('transformers has no CLIP with a residual network: convert it --to clip')
    names = clip_names.find_key_map((), model['image']['name'])
    names = clip_names.HUGGING_FACE if target == TRANSFORMERS else names
    leaves = [leaf for tree in variables.values() for leaf in traverse_util.flatten_dict(tree).items()]
    tensors = clip_names.pack({names.name(path): to_published(path, np.asarray(value)) for path, value in leaves})
    weights = safetensors.numpy.save(tensors, {'format': 'pt'})
    merges = '\n'.join(['#version: 0.2', *vocabulary.merges, '']).encode()
    if target == OPEN_CLIP:
        config = _as_json(_open_clip(model, len(vocabulary)))
        return {'open_clip_model.safetensors': weights, 'open_clip_config.json': config, 'merges.txt': merges}
    return {
        'model.safetensors': weights,
        'config.json': _as_json(_hugging_face(model, len(vocabulary))),
        'preprocessor_config.json': _as_json(_preprocessor(model['image'])),
        'merges.txt': merges,
        'vocab.json': _as_json({word: number for number, word in enumerate(vocabulary.words)}),
        'tokenizer_config.json': _as_json(_tokenizer(model['text']['max_length'])),
    }


def _as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + '\n').encode()


def _open_clip(model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns open_clip_config.json; the inverse of `read_config`."""
    image, text = model['image'], model['text']
    activation = text['activation']
    sizes = {'context_length': text['max_length'], 'vocab_size': vocab_size, 'heads': text['num_heads']}
    vision = {'image_size': image['image_size']}
    if image['name'] == _RESIDUAL:
        head_width = RESNET_CHANNELS * image['stem_dim'] // image['num_heads']
        vision |= {'layers': list(image['blocks']), 'width': image['stem_dim'], 'head_width': head_width}
        vision['patch_size'] = None
    else:
        if image['activation'] != activation:
            raise UserError(f'open_clip has one activation: convert it --to {TRANSFORMERS}')
        head_width = image['hidden_dim'] // image['num_heads']
        vision |= {'patch_size': image['patch_size'], 'head_width': head_width, **_open_clip_tower(image)}
    config = {
        'embed_dim': model['embed_dim'],
        'quick_gelu': activation == 'quick_gelu',
        'vision_cfg': vision,
        'text_cfg': sizes | _open_clip_tower(text),
    }
    pixels = {'mean': list(image['mean']), 'std': list(image['deviation'])}
    return {'model_cfg': config, 'preprocess_cfg': pixels | {'interpolation': 'bicubic', 'resize_mode': 'shortest'}}


def _open_clip_tower(tower: Mapping[str, Any]) -> dict[str, Any]:
    width, mlp_dim = tower['hidden_dim'], tower['mlp_dim']
    ratio = mlp_dim / width
    if int(width * ratio) < mlp_dim:  # rounding of the quotient
        ratio = math.nextafter(ratio, math.inf)
    return {'layers': tower['num_layers'], 'width': width, 'mlp_ratio': ratio}


def _hugging_face(model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns config.json; the inverse of `read_config`."""
    image, text = model['image'], model['text']
    end = {'bos_token_id': vocab_size - 2, 'eos_token_id': vocab_size - 1, 'pad_token_id': vocab_size - 1}
    sizes = {'vocab_size': vocab_size, 'max_position_embeddings': text['max_length']}
    pixels = {'image_size': image['image_size'], 'patch_size': image['patch_size']}
    common = {'projection_dim': model['embed_dim'], 'layer_norm_eps': EPSILON}
    return {
        'architectures': ['CLIPModel'],
        'model_type': 'clip',
        'projection_dim': model['embed_dim'],
        'text_config': {'model_type': 'clip_text_model', **common, **end, **sizes, **_hugging_face_tower(text)},
        'vision_config': {'model_type': 'clip_vision_model', **common, **pixels, **_hugging_face_tower(image)},
    }


def _hugging_face_tower(tower: Mapping[str, Any]) -> dict[str, Any]:
    return {
        'hidden_size': tower['hidden_dim'],
        'num_hidden_layers': tower['num_layers'],
        'num_attention_heads': tower['num_heads'],
        'intermediate_size': tower['mlp_dim'],
        'hidden_act': tower['activation'],
    }


def _preprocessor(image: Mapping[str, Any]) -> dict[str, Any]:
    """Returns preprocessor_config.json, CLIP's preprocessing of photos."""
    size = image['image_size']
    return {
        'image_processor_type': 'CLIPImageProcessor',
        'do_convert_rgb': True,
        'do_resize': True,
        'size': {'shortest_edge': size},
        'resample': 3,  # bicubic
        'do_center_crop': True,
        'crop_size': {'height': size, 'width': size},
        'do_rescale': True,
        'do_normalize': True,
        'image_mean': list(image['mean']),
        'image_std': list(image['deviation']),
    }


def _tokenizer(max_length: int) -> dict[str, Any]:
    """Returns tokenizer_config.json; texts are padded with their end."""
    ends = {'bos_token': START, 'eos_token': END, 'pad_token': END, 'unk_token': END}
    return {'tokenizer_class': 'CLIPTokenizer', 'model_max_length': max_length, 'do_lower_case': True, **ends}
