"""Converts published CLIP models, of Hugging Face, open_clip or OpenAI, to configs and variables of `clip.CLIP`."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chex
import numpy as np
from flax import traverse_util

from jitm.data.bpe import BPE
from jitm.errors import UserError
from jitm.importers import clip_names
from jitm.importers.clip_config import read_config, read_openai
from jitm.importers.key_maps import KeyMap, Tensors
from jitm.importers.published import Published, shapes_of
from jitm.importers.tensors import check_names, convert, open_tensors
from jitm.types import Images

WEIGHTS = (  # names in a folder, with that of the config beside it
    ('config.json', 'model.safetensors'),
    ('config.json', 'pytorch_model.bin'),
    ('open_clip_config.json', 'open_clip_model.safetensors'),
    ('open_clip_config.json', 'open_clip_pytorch_model.bin'),
)
MERGES = ('merges.txt', 'tokenizer.json', 'bpe_simple_vocab_16e6.txt.gz')

_OPENAI = 'input_resolution'  # a number that only OpenAI's files, archives of TorchScript, hold beside the weights
# Buffers, and other numbers in these files.
_SKIPPED = re.compile(
    rf'.*\.position_ids|.*\.num_batches_tracked|(.*\.)?attn_mask|{_OPENAI}|context_length|vocab_size|'
    r'(epoch|name|optimizer)(\..*)?'
)


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
    names = clip_names.find_key_map(stored, section['image']['name'])
    tensors = clip_names.unpack({name: read for name, read in stored.items() if not _SKIPPED.fullmatch(name)})
    words = tensors.get(names.name(('text', 'words', 'embedding')), lambda: pieces.words)()
    if len(words) != len(pieces):
        raise UserError(f'{merges} makes {len(pieces)} pieces, but {weights} has {len(words)}: give its own merges')
    variables = _convert(str(weights), tensors, names, section, len(pieces))
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


def _convert(
    path: str, tensors: Tensors, names: KeyMap, section: Mapping[str, Any], vocab_size: int
) -> dict[str, chex.ArrayTree]:
    """Returns 'params' and 'batch_stats' of the model from all tensors.

    Raises:
      UserError: if a tensor is missing, left over, or has another shape.
    """
    size = section['image']['image_size']
    shapes = shapes_of(section, vocab_size, Images(pixels=np.zeros((1, size, size, 3), np.uint8)))
    try:
        wanted = {names.name(leaf) for tree in shapes.values() for leaf in traverse_util.flatten_dict(tree)}
    except KeyError as error:
        raise UserError(f'{path} has more than {clip_names.LAYERS} layers: give another model') from error
    found, wanted = (set(map(clip_names.stored_name, given)) for given in (tensors, wanted))
    check_names(path, found, wanted, 'give the weights of its config')
    stored = {name: name for name in tensors}
    converted = {
        part: convert(path, stored, lambda name: tensors[name](), tree, names.name, 'CLIP')
        for part, tree in shapes.items()
    }
    return {'params': converted['params'], 'batch_stats': converted.get('batch_stats', {})}
