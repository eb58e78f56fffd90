"""Writes our CLIP as a folder of Hugging Face's transformers."""

import json
from collections.abc import Mapping
from typing import Any

import chex
import safetensors.numpy

from jitm.data.bpe import BPE, END, START
from jitm.data.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.files import parse_json
from jitm.importers.clip import HUGGING_FACE
from jitm.importers.clip_config import (
    ACTIVATIONS,
    HUGGING_FACE_PIXELS,
    HUGGING_FACE_TOWER,
    RESIDUAL,
    hugging_face_sizes,
)
from jitm.importers.tensors import export
from jitm.layers.vit import EPSILON

TARGET = 'clip_transformers'


def export_clip(
    model: Mapping[str, Any], variables: Mapping[str, chex.ArrayTree], vocabulary: Tokenizer
) -> dict[str, bytes]:
    """Returns the files of a folder: the weights, the config and the tokenizer.

    Args:
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
    if model['image']['name'] == RESIDUAL:
        raise UserError('transformers has no CLIP with a residual network: convert it --to safetensors')
    for activation in (model['text']['activation'], model['image']['activation']):
        if activation not in ACTIVATIONS:
            raise UserError(f"the run has the activation '{activation}'; CLIP has {', '.join(ACTIVATIONS)}")
    merges = parse_json(vocabulary.definition[0])['model']['merges']
    ends = {'bos_token': START, 'eos_token': END, 'pad_token': END, 'unk_token': END}  # texts are padded with their end
    tokenizer = {'tokenizer_class': 'CLIPTokenizer', 'model_max_length': model['text']['max_length']}
    return {
        'model.safetensors': safetensors.numpy.save(export(variables, HUGGING_FACE), {'format': 'pt'}),
        'config.json': _as_json(_hugging_face(model, len(vocabulary))),
        'preprocessor_config.json': _as_json(_preprocessor(model['image'])),
        'merges.txt': '\n'.join(['#version: 0.2', *map(' '.join, merges), '']).encode(),
        'vocab.json': _as_json({word: number for number, word in enumerate(vocabulary.words)}),
        'tokenizer_config.json': _as_json(tokenizer | {'do_lower_case': True, **ends}),
    }


def _as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + '\n').encode()


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
