"""Converts published CLIP models, of Hugging Face, open_clip or OpenAI, to configs and variables of `clip.CLIP`.

A CLIP of ours is written as a folder of Hugging Face's transformers.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chex
import safetensors.numpy

from jitm.data.text.pieces import BPE, END, START
from jitm.data.text.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.files import parse_json
from jitm.importers import clip_config
from jitm.importers.containers import FILES, first_file, has, open_checkpoint
from jitm.importers.processors import BICUBIC
from jitm.importers.released import ReleasedModel, with_towers
from jitm.importers.tensors import KeyMap, below, export, projections
from jitm.importers.tokenizer_files import check_byte_pairs
from jitm.layers.vit import EPSILON

TARGET = 'clip_transformers'  # the name of its folder in `jitm convert --to`
CONFIGS = {'config.json': '', 'open_clip_config.json': 'open_clip_'}  # config -> prefix of the weights beside it
MERGES = ('merges.txt', 'tokenizer.json', 'bpe_simple_vocab_16e6.txt.gz')

_OPENAI = 'input_resolution'  # a number that only OpenAI's files, archives of TorchScript, hold beside the weights
# Buffers, and other numbers in these files.
_UNREAD = rf'.*\.position_ids|.*\.num_batches_tracked|(.*\.)?attn_mask|{_OPENAI}|context_length|vocab_size'
_BLOCK = {
    **projections('attention', 'self_attn.%(letter)s_proj'),
    'attention/out': 'self_attn.out_proj',
    'attention_norm': 'layer_norm1',
    'mlp_norm': 'layer_norm2',
    'mlp_in': 'mlp.fc1',
    'mlp_out': 'mlp.fc2',
}
HUGGING_FACE = KeyMap(
    modules={
        'text/words': 'text_model.embeddings.token_embedding',
        **below(_BLOCK, 'text/encoder/block_*/', 'text_model.encoder.layers.*.'),
        'text/norm_out': 'text_model.final_layer_norm',
        'image/patches': 'vision_model.embeddings.patch_embedding',
        'image/norm_in': 'vision_model.pre_layrnorm',  # sic
        **below(_BLOCK, 'image/encoder/block_*/', 'vision_model.encoder.layers.*.'),
        'image/norm_out': 'vision_model.post_layernorm',
    },
    variables={
        'logit_scale': 'logit_scale',
        'text/positions': 'text_model.embeddings.position_embedding.weight',
        'text/projection/kernel': 'text_projection.weight',
        'image/class_embedding': 'vision_model.embeddings.class_embedding',
        'image/positions': 'vision_model.embeddings.position_embedding.weight',
        'image/projection/kernel': 'visual_projection.weight',
    },
    unread=_UNREAD,
)
_OPENAI_BLOCK = {
    **projections('attention', 'attn.in_proj_{}[%(row)d]'),
    'attention/out': 'attn.out_proj',
    'attention_norm': 'ln_1',
    'mlp_norm': 'ln_2',
    'mlp_in': 'mlp.c_fc',
    'mlp_out': 'mlp.c_proj',
}
OPENAI = KeyMap(  # also open_clip's
    modules={
        'text/words': 'token_embedding',
        **below(_OPENAI_BLOCK, 'text/encoder/block_*/', 'transformer.resblocks.*.'),
        'text/norm_out': 'ln_final',
        'image/patches': 'visual.conv1',
        'image/norm_in': 'visual.ln_pre',
        **below(_OPENAI_BLOCK, 'image/encoder/block_*/', 'visual.transformer.resblocks.*.'),
        'image/norm_out': 'visual.ln_post',
    },
    variables={
        'logit_scale': 'logit_scale',
        'text/positions': 'positional_embedding',
        'text/projection/kernel': 'text_projection[T]',
        'image/class_embedding': 'visual.class_embedding',
        'image/positions': 'visual.positional_embedding',
        'image/projection/kernel': 'visual.proj[T]',
    },
    unread=_UNREAD,
)
OPENAI_RESIDUAL = KeyMap(
    {
        **OPENAI.modules,
        **projections('image/attnpool', 'visual.attnpool.%(letter)s_proj'),
        'image/attnpool/out': 'visual.attnpool.c_proj',
    },
    OPENAI.variables | {'image/positions': 'visual.attnpool.positional_embedding'},
    networks={'image/': 'visual.'},
    unread=_UNREAD,
)
_MAPS = HUGGING_FACE, OPENAI, OPENAI_RESIDUAL
_NAMES = re.compile('|'.join(names.pattern().pattern for names in _MAPS))


def load_clip(path: str, vocabulary: str | None = None) -> ReleasedModel:
    """Reads a published CLIP.

    Args:
      path: The path of a folder of Hugging Face or open_clip with the config and the weights, of the file of weights
        in it, or of a file of OpenAI, such as `ViT-B-32.pt`, which has no config.
      vocabulary: The path of the merges; None for the ones in the folder.

    Returns:
      The model, in float32.

    Raises:
      UserError: If a file is missing or damaged, tensors are missing or left over, or it is another kind of model.
    """
    weights, config = _find(Path(path))
    tensors = open_checkpoint(str(weights), 'a CLIP', _NAMES, lambda name: name.removeprefix('text.')).tensors
    if config is None and _OPENAI not in tensors:
        raise UserError(
            f'{weights.parent} has no open_clip_config.json and no config.json, which state the sizes and the '
            f'activation of {weights.name}: add the one it was published with'
        )
    readers = {'config.json': clip_config.read_hugging_face, 'open_clip_config.json': clip_config.read_open_clip}
    section = readers[config.name](config) if config else clip_config.read_openai(weights, tensors)

    merges = vocabulary or _find_merges(weights.parent)
    pieces = BPE.load(merges, section['text']['max_length'])
    if vocabulary is None:
        check_byte_pairs(weights.parent, pieces, section['text']['max_length'])
    names = OPENAI_RESIDUAL if section['image']['name'] == clip_config.RESIDUAL else OPENAI
    names = HUGGING_FACE if any(name.startswith('text_model.') for name in tensors) else names
    return with_towers(str(weights), tensors, names, section, pieces, merges)


def _find(path: Path) -> tuple[Path, Path | None]:
    """Returns the paths of the weights and of their config; None if there is none beside them."""
    if path.is_dir():
        for config, prefix in CONFIGS.items():
            stored = first_file(path, [f'{prefix}{name}' for name in FILES])
            if stored and (path / config).is_file():
                return stored, path / config
        pairs = ' or '.join(f'{config} with {prefix}{FILES[0]}' for config, prefix in CONFIGS.items())
        raise UserError(f'{path} has no {pairs}{has(str(path))}: give the folder of a published CLIP')
    if not path.is_file():
        raise UserError(f'{path} does not exist: give the folder or the weights of a published CLIP')
    return path, first_file(path.parent, reversed(CONFIGS))


def _find_merges(folder: Path) -> str:
    file = first_file(folder, MERGES)
    if file:
        return str(file)
    raise UserError(f'{folder} has no {", ".join(MERGES[:-1])} or {MERGES[-1]}: add one, or give --vocabulary')


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
      UserError: If the model is not a CLIP of this kind.
    """
    if model['name'] != 'clip.CLIP':
        raise UserError(f"the run has the model '{model['name']}', which is not CLIP")
    if not isinstance(vocabulary, BPE):
        raise UserError('the run reads no byte pairs, as CLIP does: convert it --to safetensors')
    if model['image']['name'] == clip_config.RESIDUAL:
        raise UserError('transformers has no CLIP with a residual network: convert it --to safetensors')
    for activation in (model['text']['activation'], model['image']['activation']):
        if activation not in clip_config.ACTIVATIONS:
            raise UserError(f"the run has the activation '{activation}'; CLIP has {', '.join(clip_config.ACTIVATIONS)}")
    merges = parse_json(vocabulary.definition[0])['model']['merges']
    ends = {'bos_token': START, 'eos_token': END, 'pad_token': END, 'unk_token': END}  # texts are padded with their end
    tokenizer = {'tokenizer_class': 'CLIPTokenizer', 'model_max_length': model['text']['max_length']}
    files = {
        'config.json': _hugging_face_config(model, len(vocabulary)),
        'preprocessor_config.json': _preprocessor(model['image']),
        'vocab.json': {word: number for number, word in enumerate(vocabulary.words)},
        'tokenizer_config.json': tokenizer | {'do_lower_case': True, **ends},
    }
    return {
        'model.safetensors': safetensors.numpy.save(export(variables, HUGGING_FACE), {'format': 'pt'}),
        'merges.txt': '\n'.join(['#version: 0.2', *map(' '.join, merges), '']).encode(),
        **{name: (json.dumps(content, indent=2) + '\n').encode() for name, content in files.items()},
    }


def _hugging_face_config(model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns config.json; the inverse of `clip_config.read_hugging_face`."""
    image = model['image']
    text = model['text']
    end = {'bos_token_id': vocab_size - 2, 'eos_token_id': vocab_size - 1, 'pad_token_id': vocab_size - 1}
    sizes = {'vocab_size': vocab_size, 'max_position_embeddings': text['max_length']}
    pixels = {'image_size': image['image_size'], 'patch_size': image['patch_size']}
    common = {'projection_dim': model['embed_dim'], 'layer_norm_eps': EPSILON}
    return {
        'architectures': ['CLIPModel'],
        'model_type': 'clip',
        'projection_dim': model['embed_dim'],
        'text_config': {'model_type': 'clip_text_model', **common, **end, **sizes, **_tower(text)},
        'vision_config': {'model_type': 'clip_vision_model', **common, **pixels, **_tower(image)},
    }


def _tower(tower: Mapping[str, Any]) -> dict[str, Any]:
    return {theirs: tower[ours] for ours, theirs in clip_config.HUGGING_FACE_TOWER.items()}


def _preprocessor(image: Mapping[str, Any]) -> dict[str, Any]:
    """Returns preprocessor_config.json, CLIP's preprocessing of photos."""
    edge = image['image_size']
    return {
        'image_processor_type': 'CLIPImageProcessor',
        'do_convert_rgb': True,
        'do_resize': True,
        'size': {'shortest_edge': edge},
        'resample': BICUBIC,
        'do_center_crop': True,
        'crop_size': {'height': edge, 'width': edge},
        'do_rescale': True,
        'rescale_factor': 1 / 255,
        'do_normalize': True,
        'image_mean': list(image['mean']),
        'image_std': list(image['deviation']),
    }
