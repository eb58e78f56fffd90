"""Converts published CLIP models, of Hugging Face, open_clip or OpenAI, to configs and variables of `clip.CLIP`."""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import chex
import numpy as np
from flax import traverse_util

from jitm.data.bpe import BPE
from jitm.errors import UserError
from jitm.importers.clip_config import read_config, read_openai
from jitm.importers.published import Published, shapes_of
from jitm.importers.tensors import LEAVES, check_names, convert, open_tensors
from jitm.types import Images

WEIGHTS = (  # names in a folder, with that of the config beside it
    ('config.json', 'model.safetensors'),
    ('config.json', 'pytorch_model.bin'),
    ('open_clip_config.json', 'open_clip_model.safetensors'),
    ('open_clip_config.json', 'open_clip_pytorch_model.bin'),
)
MERGES = ('merges.txt', 'tokenizer.json', 'bpe_simple_vocab_16e6.txt.gz')

# Module of our model, below a block or below the model -> module in Hugging Face's names.
_BLOCK = {
    'attention/query': 'self_attn.q_proj',
    'attention/key': 'self_attn.k_proj',
    'attention/value': 'self_attn.v_proj',
    'attention/out': 'self_attn.out_proj',
    'attention_norm': 'layer_norm1',
    'mlp_norm': 'layer_norm2',
    'mlp_in': 'mlp.fc1',
    'mlp_out': 'mlp.fc2',
}
_MODULES = {
    'text/words': 'text_model.embeddings.token_embedding',
    'text/norm_out': 'text_model.final_layer_norm',
    'text/projection': 'text_projection',
    'image/patches': 'vision_model.embeddings.patch_embedding',
    'image/norm_in': 'vision_model.pre_layrnorm',  # sic
    'image/norm_out': 'vision_model.post_layernorm',
    'image/projection': 'visual_projection',
}
_PARAMETERS = {
    'logit_scale': 'logit_scale',
    'text/positions': 'text_model.embeddings.position_embedding.weight',
    'image/class_embedding': 'vision_model.embeddings.class_embedding',
    'image/positions': 'vision_model.embeddings.position_embedding.weight',
}
# Names of OpenAI and open_clip -> those of Hugging Face, one rule after the other.
_TEXT_RULES = (
    (r'^transformer\.resblocks\.', 'text_model.encoder.layers.'),
    (r'^token_embedding\.', 'text_model.embeddings.token_embedding.'),
    (r'^positional_embedding$', 'text_model.embeddings.position_embedding.weight'),
    (r'^ln_final\.', 'text_model.final_layer_norm.'),
    (r'^text_projection$', 'text_projection.weight'),
)
_IMAGE_RULES = (
    (r'^visual\.transformer\.resblocks\.', 'vision_model.encoder.layers.'),
    (r'^visual\.conv1\.', 'vision_model.embeddings.patch_embedding.'),
    (r'^visual\.class_embedding$', 'vision_model.embeddings.class_embedding'),
    (r'^visual\.positional_embedding$', 'vision_model.embeddings.position_embedding.weight'),
    (r'^visual\.ln_pre\.', 'vision_model.pre_layrnorm.'),
    (r'^visual\.ln_post\.', 'vision_model.post_layernorm.'),
    (r'^visual\.proj$', 'visual_projection.weight'),
)
_BLOCK_RULES = (
    (r'\.attn\.in_proj_', '.self_attn.in_proj.'),
    (r'\.attn\.out_proj\.', '.self_attn.out_proj.'),
    (r'\.ln_(\d)\.', r'.layer_norm\1.'),
    (r'\.mlp\.c_fc\.', '.mlp.fc1.'),
    (r'\.mlp\.c_proj\.', '.mlp.fc2.'),
)
_POOL_RULES = (  # of a residual network
    (r'^visual\.attnpool\.positional_embedding$', 'vision_model.embeddings.position_embedding.weight'),
    (r'^visual\.attnpool\.([qkv])_proj\.', r'visual.attnpool.\1.'),
    (r'^visual\.attnpool\.c_proj\.', 'visual.attnpool.out.'),
)
_POOL = {'query': 'q', 'key': 'k', 'value': 'v', 'out': 'out'}
_OPENAI = 'input_resolution'  # a number that only OpenAI's files, archives of TorchScript, hold beside the weights
# Buffers, and other numbers in these files.
_SKIPPED = re.compile(
    rf'.*\.position_ids|.*\.num_batches_tracked|(.*\.)?attn_mask|{_OPENAI}|context_length|vocab_size|'
    r'(epoch|name|optimizer)(\..*)?'
)

Tensors = dict[str, Callable[[], np.ndarray]]  # name -> reads the tensor


def load_clip(path: str, vocabulary: str | None = None) -> Published:
    """Reads a published CLIP.

    Args:
      path: a folder of Hugging Face or open_clip, with the config and the weights, or the file of weights in it; or a
        file of OpenAI, such as `ViT-B-32.pt`, which has no config.
      vocabulary: path of the merges; None for those in the folder.

    Returns:
      The model, in float32.

    Raises:
      UserError: if a file is missing or damaged, tensors are missing or left over, or the model is of another kind.
    """
    weights, config = _find(Path(path))
    stored = _read(weights)
    section = read_config(config) if config else _read_openai(weights, stored)
    merges = vocabulary or _find_merges(weights.parent)
    pieces = BPE.load(merges)
    tensors = _rename({name: read for name, read in stored.items() if not _SKIPPED.fullmatch(name)})
    words = tensors.get('text_model.embeddings.token_embedding.weight', lambda: pieces.words)()
    if len(words) != len(pieces):
        raise UserError(f'{merges} makes {len(pieces)} pieces, but {weights} has {len(words)}: give its own merges')
    variables = _convert(str(weights), tensors, section, len(pieces))
    size = section['image']['image_size']
    return Published(section, variables, pieces, merges, {'pixels': [0, size, size, 3], 'dtype': 'uint8', 'hash': ''})


def _find(path: Path) -> tuple[Path, Path | None]:
    """Returns the paths of the weights and of their config; None if there is none beside them."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        found = next((pair for pair in WEIGHTS if all((folder / name).is_file() for name in pair)), None)
        if found is None:
            pairs = ' or '.join(f'{config} with {weights}' for config, weights in WEIGHTS[::2])
            raise UserError(f'{path} has no {pairs}: give the folder of a published CLIP')
        return folder / found[1], folder / found[0]
    if not path.is_file():
        raise UserError(f'{path} does not exist: give the folder or the weights of a published CLIP')
    configs = (folder / name for name in ('open_clip_config.json', 'config.json'))
    return path, next((config for config in configs if config.is_file()), None)


def _read_openai(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Returns the config's `model` of weights without a config.

    Raises:
      UserError: if they are not those of OpenAI.
    """
    if _OPENAI not in tensors:
        raise UserError(
            f'{path.parent} has no open_clip_config.json and no config.json, which state the sizes and the activation '
            f'of {path.name}: add the one it was published with'
        )
    return read_openai(path, lambda name: tensors[name]().shape, tensors)


def _find_merges(folder: Path) -> str:
    for name in MERGES:
        if (folder / name).is_file():
            return str(folder / name)
    raise UserError(f'{folder} has no {", ".join(MERGES[:-1])} or {MERGES[-1]}: add one, or give --vocabulary')


def _read(path: Path) -> Tensors:
    """Opens the weights, without the prefixes of training checkpoints.

    Raises:
      UserError: if they are of the other kind of open_clip's models.
    """
    names, read = open_tensors(str(path), 'CLIP')
    tensors = {re.sub(r'^(state_dict\.)?(module\.)?', '', name): functools.partial(read, name) for name in names}
    if any(name.startswith('text.') for name in tensors):
        raise UserError(f"{path} is a CustomTextCLIP, with names such as 'text.*': give the weights of a plain CLIP")
    return tensors


def _rename(tensors: Tensors) -> Tensors:
    """Returns tensors with the names and shapes of Hugging Face; a residual network keeps its names."""
    if 'text_model.embeddings.token_embedding.weight' in tensors:
        return tensors
    residual = 'visual.layer1.0.conv1.weight' in tensors
    rules = (*_TEXT_RULES, *(_POOL_RULES if residual else _IMAGE_RULES))
    renamed = {}
    for name, read in tensors.items():
        new = name
        for pattern, replacement in rules:
            new = re.sub(pattern, replacement, new)
        for pattern, replacement in _BLOCK_RULES if '_model.encoder.' in new else ():
            new = re.sub(pattern, replacement, new)
        module, _, leaf = new.rpartition('.')
        if module.endswith('.in_proj'):
            for number, part in enumerate('qkv'):
                renamed[f'{module.removesuffix("in_proj")}{part}_proj.{leaf}'] = functools.partial(_third, read, number)
        elif module in ('text_projection', 'visual_projection'):
            renamed[new] = functools.partial(_transposed, read)
        else:
            renamed[new] = read
    return renamed


def _third(read: Callable[[], np.ndarray], number: int) -> np.ndarray:
    """Returns the rows of the queries, keys or values in a packed tensor."""
    return np.split(read(), 3)[number]


def _transposed(read: Callable[[], np.ndarray]) -> np.ndarray:
    return read().T


def _convert(path: str, tensors: Tensors, section: Mapping[str, Any], vocab_size: int) -> dict[str, chex.ArrayTree]:
    """Returns 'params' and 'batch_stats' of the model from all tensors.

    Raises:
      UserError: if a tensor is missing, left over, or has another shape.
    """
    size = section['image']['image_size']
    shapes = shapes_of(section, vocab_size, Images(pixels=np.zeros((1, size, size, 3), np.uint8)))
    wanted = {published_name(leaf) for tree in shapes.values() for leaf in traverse_util.flatten_dict(tree)}
    check_names(path, tensors, wanted, 'give the weights of its config')
    converted = {
        part: convert(
            path, dict(zip(tensors, tensors, strict=True)), lambda name: tensors[name](), tree, published_name, 'CLIP'
        )
        for part, tree in shapes.items()
    }
    return {'params': converted['params'], 'batch_stats': converted.get('batch_stats', {})}


def published_name(path: tuple[str, ...]) -> str:
    """Returns the name of a variable's tensor, in Hugging Face's names, or open_clip's of a residual network."""
    module, leaf = '/'.join(path[:-1]), path[-1]
    if '/'.join(path) in _PARAMETERS:
        return _PARAMETERS['/'.join(path)]
    if module in _MODULES:
        return f'{_MODULES[module]}.{LEAVES[leaf]}'
    if match := re.fullmatch(r'(image|text)/encoder/block_(\d+)/(.*)', module):
        tower = {'image': 'vision_model', 'text': 'text_model'}[match[1]]
        return f'{tower}.encoder.layers.{match[2]}.{_BLOCK[match[3]]}.{LEAVES[leaf]}'
    if module.startswith('image/attnpool/'):
        return f'visual.attnpool.{_POOL[path[2]]}.{LEAVES[leaf]}'
    module = re.sub(r'_(\d+)', r'.\1', '.'.join(path[1:-1]))
    return f'visual.{module}.{LEAVES[leaf]}'
