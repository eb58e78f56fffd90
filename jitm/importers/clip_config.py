"""The configs of published CLIP models, of Hugging Face, open_clip or OpenAI, as the config's `model`."""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jitm.config.foreign import read_json
from jitm.errors import UserError
from jitm.importers.containers import Tensors
from jitm.importers.tensors import count_blocks, head_size, shape_of
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN, EPSILON

ACTIVATIONS = ('gelu', 'quick_gelu')
TEMPERATURE = 0.07  # initial value; a converted model has the learned one
RESIDUAL = 'clip_resnet.ModifiedResNet'
RESNET_CHANNELS = 32  # channels of the last map for each channel of the stem
RESNET_STRIDE = 32  # pixels per cell of the last map

HUGGING_FACE_TOWER = {  # our key -> Hugging Face's
    'hidden_dim': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'mlp_dim': 'intermediate_size',
    'activation': 'hidden_act',
}
# Keys of Hugging Face's config -> defaults, which files of before 2023 leave out.
_SIZES = {'num_hidden_layers': 12, 'hidden_act': 'quick_gelu', 'layer_norm_eps': EPSILON}
_TEXT_WIDTHS = {'hidden_size': 512, 'intermediate_size': 2048, 'num_attention_heads': 8}
_TEXT_SIZES = _SIZES | _TEXT_WIDTHS | {'max_position_embeddings': 77, 'vocab_size': 49408, 'eos_token_id': 49407}
_IMAGE_WIDTHS = {'hidden_size': 768, 'intermediate_size': 3072, 'num_attention_heads': 12}
_IMAGE_SIZES = _SIZES | _IMAGE_WIDTHS | {'image_size': 224, 'patch_size': 32}
_LEGACY_END = 2  # in released configs; the end of a text is then its largest id, as ours is
_OPEN_CLIP = {'embed_dim': 0, 'vision_cfg': {}, 'text_cfg': {}, 'quick_gelu': False}  # embed_dim has no default
_OPEN_CLIP_VIT = {'image_size': 224, 'layers': 12, 'width': 768, 'patch_size': 16, 'head_width': 64, 'mlp_ratio': 4.0}
_OPEN_CLIP_RESNET = {'image_size': 224, 'layers': [3, 4, 6, 3], 'width': 64, 'head_width': 64}
_OPEN_CLIP_TEXT = {'context_length': 77, 'vocab_size': 49408, 'width': 512, 'heads': 8, 'layers': 12, 'mlp_ratio': 4.0}
# Keys of the preprocessing, besides the sizes -> the values of CLIP; a missing key has the first one.
HUGGING_FACE_PIXELS = {
    'do_resize': (True,),
    'resample': (3,),  # bicubic
    'do_center_crop': (True,),
    'do_rescale': (True,),
    'rescale_factor': (1 / 255,),
    'do_normalize': (True,),
}
OPEN_CLIP_PIXELS = {
    'mode': ('RGB',),
    'interpolation': ('bicubic', 'random'),  # which is random in training only
    'resize_mode': ('shortest',),
}


def hugging_face_sizes(size: int) -> dict[str, tuple]:
    """Returns the keys of the preprocessing that state a size -> the values of CLIP for images of `size` pixels."""
    return {'size': ({'shortest_edge': size}, size), 'crop_size': ({'height': size, 'width': size}, size)}


def read_hugging_face(path: Path) -> dict[str, Any]:
    """Returns the config's `model` of a published CLIP from its `config.json`.

    Raises:
      UserError: If the file is damaged, it is another kind of model, or its image preprocessing differs from CLIP's.
    """
    content = read_json(path)
    if content.get('model_type') != 'clip':
        raise UserError(f"{path} has the model_type '{content.get('model_type')}': give a model of the type 'clip'")
    text, image = towers_of(path, content, (_TEXT_SIZES, _IMAGE_SIZES), ACTIVATIONS, title='CLIP')
    if text['eos_token_id'] not in (_LEGACY_END, text['vocab_size'] - 1):
        raise UserError(
            f'{path} has eos_token_id {text["eos_token_id"]}, but the tokenizer of CLIP ends texts with '
            f'{text["vocab_size"] - 1}: give another model'
        )
    file, size = path.with_name('preprocessor_config.json'), image['image_size']
    pixels = read_json(file) if file.is_file() else {}
    check_pixels(file, pixels, HUGGING_FACE_PIXELS | hugging_face_sizes(size))
    mean, deviation = normalization(file, pixels, ('image_mean', 'image_std'))
    text_tower, image_tower = (
        {ours: part[theirs] for ours, theirs in HUGGING_FACE_TOWER.items()} for part in (text, image)
    )
    sizes = {'name': 'vit.ViT', 'image_size': size, 'patch_size': image['patch_size']}
    embed_dim = values_of(path, content, {'projection_dim': 512})['projection_dim']
    text_tower['max_length'] = text['max_position_embeddings']
    return _section(embed_dim, sizes | image_tower, text_tower, mean, deviation)


def towers_of(
    path: Path,
    content: Mapping[str, Any],
    sizes: tuple[Mapping[str, Any], Mapping[str, Any]],
    activations: Collection[str],
    *,
    title: str,
) -> list[dict[str, Any]]:
    """Returns the sizes of the text tower and of the image tower of a config.json.

    Args:
      path: The path of the file, for messages.
      content: Its content.
      sizes: The keys of both towers, and the values of those that the file may lack.
      activations: The names of the activations that jitm has.
      title: The name of the model, for messages.

    Raises:
      UserError: If a key is missing or of a wrong type, or a tower has another activation or epsilon than the model.
    """
    towers = []
    for part, known in zip(('text', 'vision'), sizes, strict=True):
        stated = [content.get(key) or {} for key in (f'{part}_config', f'{part}_config_dict')]  # the second one counts
        if not all(isinstance(section, dict) for section in stated):
            raise UserError(f"{path} has no JSON object as '{part}_config': download it again")
        tower = values_of(path, stated[0] | stated[1], known)
        if tower['hidden_act'] not in activations:
            raise UserError(f"{path} has the hidden_act '{tower['hidden_act']}'; jitm has {', '.join(activations)}")
        if tower['layer_norm_eps'] != (epsilon := known['layer_norm_eps']):
            raise UserError(f'{path} has layer_norm_eps {tower["layer_norm_eps"]}; {title} has {epsilon}')
        towers.append(tower)
    return towers


def read_open_clip(path: Path) -> dict[str, Any]:
    """Returns the config's `model` of a published CLIP from its `open_clip_config.json`; errors as above."""
    content = read_json(path)
    sections = values_of(path, content, {'model_cfg': {}, 'preprocess_cfg': {}})
    pixels = sections['preprocess_cfg']
    model = _of_open_clip(path, sections['model_cfg'], *normalization(path, pixels, ('mean', 'std')))
    size = model['image']['image_size']
    check_pixels(path, pixels, OPEN_CLIP_PIXELS | {'size': (size, [size, size])})
    return model


def read_openai(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Returns the config's `model` of a CLIP of OpenAI, whose sizes are read from its tensors.

    Args:
      path: The path of the weights, for messages.
      tensors: All tensors.

    Raises:
      UserError: If a tensor that states a size is missing, or has another number of axes.
    """
    sizes = functools.partial(shape_of, str(path), tensors)
    length, text_width = sizes('positional_embedding', 2)
    text = {'context_length': length, 'width': text_width, 'heads': text_width // head_size(text_width)}
    text['layers'] = count_blocks(tensors, 'transformer.resblocks')
    if 'visual.proj' in tensors:
        width, _, _, edge = sizes('visual.conv1.weight', 4)
        layers = count_blocks(tensors, 'visual.transformer.resblocks')
        cells, _ = sizes('visual.positional_embedding', 2)
    else:
        width, edge = sizes('visual.layer1.0.conv1.weight', 4)[0], RESNET_STRIDE
        layers = [count_blocks(tensors, f'visual.layer{layer}') for layer in (1, 2, 3, 4)]
        cells, _ = sizes('visual.attnpool.positional_embedding', 2)
    image = {'image_size': edge * math.isqrt(cells - 1), 'layers': layers, 'width': width}  # position 0 is not a cell
    image |= {'head_width': head_size(width), 'patch_size': None if isinstance(layers, list) else edge}
    content = {'embed_dim': sizes('text_projection', 2)[1], 'quick_gelu': True, 'vision_cfg': image, 'text_cfg': text}
    return _of_open_clip(path, content, CLIP_MEAN, CLIP_DEVIATION)


def _of_open_clip(path: Path, content: Mapping[str, Any], mean: tuple, deviation: tuple) -> dict[str, Any]:
    """Returns the config's `model` of the `model_cfg` of open_clip."""
    model = _given(path, content, _OPEN_CLIP, ignored=('init_logit_scale', 'custom_text'))
    if not model['vision_cfg'] or not model['text_cfg']:
        raise UserError(f'{path} has no model_cfg with vision_cfg and text_cfg: give the config of a CLIP of open_clip')
    residual = isinstance(model['vision_cfg'].get('layers'), list)  # the blocks of its four stages
    image = _given(path, model['vision_cfg'], _OPEN_CLIP_RESNET if residual else _OPEN_CLIP_VIT)
    activation = 'quick_gelu' if model['quick_gelu'] else 'gelu'
    if residual:
        heads = RESNET_CHANNELS * image['width'] // image['head_width']
        sizes = {'blocks': tuple(image['layers']), 'stem_dim': image['width'], 'num_heads': heads}
        encoder = {'name': RESIDUAL, 'train_norm': False, **sizes}
    elif heads := image['width'] // image['head_width']:
        tower = _open_clip_tower(image, heads, activation)
        encoder = {'name': 'vit.ViT', 'patch_size': image['patch_size'], **tower}
    else:
        raise UserError(f"{path} has a 'head_width' above the 'width': download the file again")
    encoder['image_size'] = image['image_size']
    text = _given(path, model['text_cfg'], _OPEN_CLIP_TEXT)
    words = {'max_length': text['context_length'], **_open_clip_tower(text, text['heads'], activation)}
    return _section(model['embed_dim'], encoder, words, mean, deviation)


def _open_clip_tower(sizes: Mapping[str, Any], heads: int, activation: str) -> dict[str, Any]:
    return {
        'hidden_dim': sizes['width'],
        'num_layers': sizes['layers'],
        'num_heads': heads,
        'mlp_dim': int(sizes['width'] * sizes['mlp_ratio']),
        'activation': activation,
    }


def normalization(
    path: Path,
    content: Mapping[str, Any],
    keys: tuple[str, str],
    defaults: tuple[tuple, tuple] = (CLIP_MEAN, CLIP_DEVIATION),
) -> list[tuple[float, ...]]:
    """Returns the mean and the deviation of the pixels."""
    found = [default if content.get(key) is None else content[key] for key, default in zip(keys, defaults, strict=True)]
    for key, value, least, suffix in zip(keys, found, (-math.inf, 0), ('', ' above 0'), strict=True):
        is_list = isinstance(value, list | tuple) and len(value) == 3
        if not is_list or not all(_is_number(number, least) for number in value):
            raise UserError(f"{path} sets '{key}' to {value!r}: it must be three numbers{suffix}")
    return [*map(tuple, found)]


def _is_number(value: Any, least: float = 0) -> bool:
    return type(value) in (int, float) and least < value < math.inf


_KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {  # type of a default -> the requirement on a value
    int: ('a whole number above 0', lambda value: type(value) is int and value > 0),
    float: ('a number above 0', _is_number),
    str: ('a text', lambda value: isinstance(value, str)),
    bool: ('true or false', lambda value: isinstance(value, bool)),
    dict: ('a JSON object', lambda value: isinstance(value, dict)),
    list: ('four whole numbers above 0', lambda value: len(value) == 4 and all(map(_KINDS[int][1], value))),
}


def values_of(path: Path, section: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the known keys, by default the given ones.

    Raises:
      UserError: If a value has another type than the default.
    """
    values = {key: section.get(key, default) for key, default in known.items()}
    for key, default in known.items():
        kind, is_right = _KINDS[type(default)]
        if not is_right(values[key]):
            raise UserError(f"{path} has '{key}' {values[key]!r}; it must be {kind}: download the file again")
    return values


def check_pixels(path: Path, content: Mapping[str, Any], known: Mapping[str, tuple], model: str = 'CLIP') -> None:
    """Raises a UserError unless photos become pixels in a known way.

    Args:
      path: The path of the file.
      content: The keys that it sets.
      known: The values that a key may have: OpenAI's CLIP resizes the shorter side of photos to the size of the image
        encoder and crops the center.
      model: The name of the model, for messages.
    """
    for key, values in known.items():
        if (value := content.get(key)) is not None and value not in values:
            wanted = f'a {model} is converted with {values[0]!r} only'
            raise UserError(f"{path} sets '{key}' to {value!r}, but {wanted}: give another model")


def _given(path: Path, section: Mapping[str, Any], known: Mapping[str, Any], ignored: Collection[str] = ()) -> dict:
    """Returns the values of the known keys, see `values_of`.

    Raises:
      UserError: If there is another key with a value, which would change the model.
    """
    for key, value in section.items():
        if key not in known and key not in ignored and value not in (None, False, ''):
            raise UserError(f"{path} sets '{key}' to {value!r}, which this CLIP does not have: give another model")
    return values_of(path, section, known)


def _section(embed_dim: int, image: dict, text: dict, mean: tuple, deviation: tuple) -> dict[str, Any]:
    """Returns the config's `model`."""
    return {
        'name': 'clip.CLIP',
        'embed_dim': embed_dim,
        'image': {'dtype': 'float32', 'mean': mean, 'deviation': deviation, **image},
        'text': {'name': 'clip_text.CausalTransformer', 'dtype': 'float32', **text},
        'initial_temperature': TEMPERATURE,
    }
