"""Writes our CLIP as a folder of open_clip, with OpenAI's names, or of Hugging Face's transformers."""

import json
import math
from collections.abc import Mapping
from typing import Any

import chex
import safetensors.numpy

from jitm.data.bpe import BPE, END, START
from jitm.data.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.importers.clip import names_of
from jitm.importers.clip_config import (
    ACTIVATIONS,
    HUGGING_FACE_PIXELS,
    HUGGING_FACE_TOWER,
    OPEN_CLIP_PIXELS,
    RESIDUAL,
    RESNET_CHANNELS,
    hugging_face_sizes,
)
from jitm.importers.tensors import export
from jitm.layers.vit import EPSILON

OPEN_CLIP, TRANSFORMERS = TARGETS = ('clip', 'clip_transformers')


def export_clip(
    target: str, model: Mapping[str, Any], variables: Mapping[str, chex.ArrayTree], vocabulary: Tokenizer
) -> dict[str, bytes]:
    """Returns the files of a folder: the weights, the config and the tokenizer.

    Args:
      target: One of `TARGETS`: 'clip' for open_clip, 'clip_transformers' for Hugging Face.
      model: The config's `model`.
      variables: 'params' and 'batch_stats'.
      vocabulary: The vocabulary of its texts.

    Returns:
      Name of a file -> its content.

    Raises:
      UserError: if the model is not a CLIP of this kind.
    """
    if model['name'] != 'clip.CLIP':
        raise UserError(f"the run has the model '{model['name']}', which is not CLIP")
    if not isinstance(vocabulary, BPE):
        raise UserError('the run reads no byte pairs, as CLIP does: convert it --to safetensors')
    if target == TRANSFORMERS and model['image']['name'] == RESIDUAL:
        raise UserError('transformers has no CLIP with a residual network: convert it --to clip')
    for activation in (model['text']['activation'], model['image'].get('activation', ACTIVATIONS[0])):
        if activation not in ACTIVATIONS:
            raise UserError(f"the run has the activation '{activation}'; CLIP has {', '.join(ACTIVATIONS)}")
    weights = safetensors.numpy.save(export(variables, names_of(model, target == TRANSFORMERS)), {'format': 'pt'})
    merges = '\n'.join(['#version: 0.2', *vocabulary.merges, '']).encode()
    if target == OPEN_CLIP:
        config = _as_json(_open_clip(model, len(vocabulary)))
        return {'open_clip_model.safetensors': weights, 'open_clip_config.json': config, 'merges.txt': merges}
    ends = {'bos_token': START, 'eos_token': END, 'pad_token': END, 'unk_token': END}  # texts are padded with their end
    tokenizer = {'tokenizer_class': 'CLIPTokenizer', 'model_max_length': model['text']['max_length']}
    return {
        'model.safetensors': weights,
        'config.json': _as_json(_hugging_face(model, len(vocabulary))),
        'preprocessor_config.json': _as_json(_preprocessor(model['image'])),
        'merges.txt': merges,
        'vocab.json': _as_json({word: number for number, word in enumerate(vocabulary.words)}),
        'tokenizer_config.json': _as_json(tokenizer | {'do_lower_case': True, **ends}),
    }


def _as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + '\n').encode()


def _open_clip(model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns open_clip_config.json; the inverse of `read_config`."""
    image, text = model['image'], model['text']
    if image['name'] == RESIDUAL:
        head_width = RESNET_CHANNELS * image['stem_dim'] // image['num_heads']
        sizes = {'layers': list(image['blocks']), 'width': image['stem_dim'], 'patch_size': None}
    else:
        if image['activation'] != text['activation']:
            raise UserError(f'open_clip has one activation: convert it --to {TRANSFORMERS}')
        head_width = image['hidden_dim'] // image['num_heads']
        sizes = {'patch_size': image['patch_size'], **_open_clip_tower(image)}
    words = {'context_length': text['max_length'], 'vocab_size': vocab_size, 'heads': text['num_heads']}
    config = {
        'embed_dim': model['embed_dim'],
        'quick_gelu': text['activation'] == 'quick_gelu',
        'vision_cfg': {'image_size': image['image_size'], 'head_width': head_width, **sizes},
        'text_cfg': words | _open_clip_tower(text),
    }
    pixels = {key: values[0] for key, values in OPEN_CLIP_PIXELS.items() if key != 'mode'}
    pixels |= {'mean': list(image['mean']), 'std': list(image['deviation'])}
    return {'model_cfg': config, 'preprocess_cfg': pixels}


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
    text_tower, image_tower = (
        {theirs: tower[ours] for ours, theirs in HUGGING_FACE_TOWER.items()} for tower in (text, image)
    )
    return {
        'architectures': ['CLIPModel'],
        'model_type': 'clip',
        'projection_dim': model['embed_dim'],
        'text_config': {'model_type': 'clip_text_model', **common, **end, **sizes, **text_tower},
        'vision_config': {'model_type': 'clip_vision_model', **common, **pixels, **image_tower},
    }


def _preprocessor(image: Mapping[str, Any]) -> dict[str, Any]:
    """Returns preprocessor_config.json, CLIP's preprocessing of photos."""
    pixels = HUGGING_FACE_PIXELS | hugging_face_sizes(image['image_size'])
    return {
        'image_processor_type': 'CLIPImageProcessor',
        'do_convert_rgb': True,
        **{key: values[0] for key, values in pixels.items()},
        'image_mean': list(image['mean']),
        'image_std': list(image['deviation']),
    }
