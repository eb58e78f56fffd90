"""Opens files of weights: finds a model inside the containers of training scripts and libraries."""

import collections
import contextlib
import functools
import itertools
import math
import pathlib
import re
import types
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors

from jitm.config.foreign import declared, read_declared
from jitm.errors import UserError
from jitm.files import check_within, parse_json
from jitm.files.pickles import Placeholder
from jitm.importers import torch_files
from jitm.importers.torch_files import Tensor

Tensors = dict[str, Callable[[], np.ndarray]]  # name -> reads the tensor

NAMES = ('model.safetensors', 'pytorch_model.bin')
FILES = (*NAMES, *(f'{name}.index.json' for name in NAMES))
OPTIONS = ('opt', 'args', 'config', 'cfg', 'options', 'hparams', 'hyper_parameters')  # keys of the options of a script
WEIGHTS = ('model', 'state_dict', 'model_state_dict', 'module', '_orig_mod')  # keys and prefixes of the weights
BESIDE = re.compile(r'[^.]*(optim|sched|scaler|rng)')  # keys of other training state
WRAPPERS = re.compile(r'(?<![^.])(module|_orig_mod|_checkpoint_wrapped_module)\.')  # modules of torch around others
DEEPEST = 50  # maximal nesting of containers
ADAPTER = 'adapter_config.json'  # which transformers applies to the weights beside it
COMPRESSED = 100  # maximal ratio of an archive's content to its file


@declared
class Index:
    """The index of weights in several files."""

    harmless = 'metadata'

    weight_map: dict


class Checkpoint(NamedTuple):
    """The weights of a model in a file, and the values that are stored beside them.

    Attributes:
      path: The path of the file.
      tensors: The weights by their current names.
      values: A key anywhere in the file -> its dotted places -> its values there.
    """

    path: str
    tensors: Tensors
    values: Mapping[str, Mapping[str, Any]]

    def option(self, name: str, default: Any = None) -> Any:
        """Returns an option of the training script.

        Args:
          name: The name of the option. A value below one of `OPTIONS` counts first.
          default: The result if no key in the file has this name.

        Raises:
          UserError: If it has several values, or may be in an object that is not read.
        """
        values = {place: _as_number(value) for place, value in self.values.get(name, {}).items()}
        options = {place: value for place, value in values.items() if {*OPTIONS} & {*place.split('.')}} or values
        if options:
            (first, chosen), *more = options.items()
            for place, value in more:
                if value != chosen:
                    raise UserError(f'{self.path} has {first}={chosen!r} and {place}={value!r}: leave one of them out')
            return chosen
        for place, value in itertools.chain(*(self.values.get(key, {}).items() for key in OPTIONS)):
            if _is_unread(value):
                problem = f"'{place}' as an object of '{value.origin}'"
                raise UserError(f'{self.path} has {problem}, which is not read: save a dict')
            if isinstance(value, str | list | tuple) and not {*OPTIONS} & {*place.split('.')[:-1]}:
                raise UserError(f"{self.path} has '{place}' = {value!r:.60}, not named options: save a dict")
        return default


def open_checkpoint(
    path: str, model: str, names: re.Pattern, new_name: Callable[[str], str] = lambda name: name
) -> Checkpoint:
    """Opens a file of weights.

    The weights have the prefix that leaves most names of the model; prefixes in `WEIGHTS` come first, then longer ones.
    The container with this prefix is read, and nothing beside it.

    Args:
      path: The path of a `.safetensors` file, an `.npz` file, a file of torch, an index of several such files, or a
        folder with one of `FILES`.
      model: The name of the model, for messages.
      names: A pattern of the current names of its tensors.
      new_name: Maps the name of a tensor without prefix to its current one.

    Returns:
      The weights, whose readers raise a UserError for a tensor without floating-point numbers.

    Raises:
      UserError: If there is no such file, it is damaged, or does not have the weights of one such model.
    """
    file = _find(path, model)
    opened = _open(file)
    leaves = {'.'.join(keys): (keys, leaf) for keys, leaf in _leaves(opened)}
    stored = {name: keys for name, (keys, leaf) in leaves.items() if isinstance(leaf, _TENSORS) or _is_unread(leaf)}

    def current_name(name: str) -> str:
        return new_name(WRAPPERS.sub('', name))

    votes = collections.Counter()
    for name in stored:
        for match in re.finditer(r'^|\.', name):
            if names.fullmatch(current_name(name[match.end() :])):
                votes[name[: match.end()]] += 1
    if not votes:
        raise UserError(f'{file} has no tensors of {model}: {_describe(leaves, stored, model)}')
    prefix = _choose(file, model, votes)
    base = max(filter(prefix.startswith, set().union(*map(_parents, stored.values()))), key=len)
    inside = [name for name in stored if name.startswith(prefix) and (base or not BESIDE.match(name))]
    renamed = {name: current_name(name.removeprefix(prefix)) for name in inside}
    direct = {name for name in inside if _parents(stored[name])[-1] == base}
    if not any(names.fullmatch(renamed[name]) for name in direct):
        inside = [name for name in inside if name not in direct]  # without a loss beside modules
    stored_name = {}
    for name in inside:
        if renamed[name] in stored_name:
            first = stored_name[renamed[name]]
            raise UserError(f"{file} has both '{first}' and '{name}': give a checkpoint with one model")
        if names.fullmatch(renamed[name]) or not _is_unread(leaves[name][1]):
            stored_name[renamed[name]] = name
    tensors = {new: functools.partial(_read, file, name, leaves[name][1]) for new, name in stored_name.items()}
    values = collections.defaultdict(dict)
    for name, (keys, leaf) in leaves.items():
        values[keys[-1]][name] = leaf
    return Checkpoint(str(file), tensors, values)


_TENSORS = (Tensor, functools.partial)  # leaves of files of torch, and of others


def _leaves(node: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the keys of everything in nested containers; lists without containers are values."""
    node = _as_options(node) if keys and keys[-1] in OPTIONS else node
    inner = vars(node) if isinstance(node, types.SimpleNamespace) else node
    if isinstance(node, list | tuple) and not isinstance(node, Tensor):
        inner = dict(enumerate(node)) if any(isinstance(part, _CONTAINERS) for part in node) else node
    if isinstance(inner, Mapping) and len(keys) < DEEPEST and not _is_unread(node):
        for key, value in inner.items():
            yield from _leaves(value, (*keys, str(key)))
    elif keys or isinstance(node, _TENSORS) or _is_unread(node):
        yield keys or ('',), node


_CONTAINERS = (Mapping, types.SimpleNamespace, list, tuple, Tensor)


def _parents(keys: tuple[str, ...]) -> list[str]:
    """Returns the prefixes of the containers of a value, from outside."""
    return list(itertools.accumulate((f'{key}.' for key in keys[:-1]), initial=''))


def _is_unread(value: Any) -> bool:
    """Returns whether a value is a placeholder of an object, or a class, whose content is not read."""
    return (isinstance(value, Placeholder) and not value) or (
        isinstance(value, type) and issubclass(value, Placeholder)
    )


def _choose(file: pathlib.Path, model: str, votes: Mapping[str, int]) -> str:
    """Returns the prefix of the weights, see `open_checkpoint`."""
    ranks = {}
    for prefix, count in votes.items():
        wrappers = [key in WEIGHTS for key in prefix.split('.')[:-1]]
        ranks[prefix] = count, -wrappers.count(False), wrappers.count(True)
    *shorter, longest = sorted((prefix for prefix in votes if ranks[prefix] == max(ranks.values())), key=len)
    for prefix in shorter:
        if not longest.startswith(prefix):
            places = f"below '{prefix[:-1]}' and below '{longest[:-1]}'"
            raise UserError(f'{file} has {model} {places}: give a file with one')
    return longest


def _describe(leaves: Mapping[str, tuple], stored: Collection[str], model: str) -> str:
    """Describes the content of a file without the wanted weights."""
    for name in stored:
        leaf = leaves[name][1]
        if _is_unread(leaf):
            content = f"'{name}'" if name else 'its content'
            return f"{content} is an object of '{leaf.origin}', which is not read; save its state_dict()"
    parts = zip(*(name.split('.')[:-1] for name in stored), strict=False)
    shared = ''.join(f'{part[0]}.' for part in itertools.takewhile(lambda part: len({*part}) == 1, parts))
    names_there = f"all names start with '{shared}'" if shared else f'it has {list_names(stored) or "none"}'
    return f'{names_there}; give the weights of {model}'


def list_names(names: Collection[str], shown: int = 5) -> str:
    """Lists names, the first ones if there are many."""
    more = f' and {len(names) - shown} others' if len(names) > shown else ''
    return ', '.join(sorted(names)[:shown]) + more


def _read(file: pathlib.Path, name: str, leaf: Any) -> np.ndarray:
    if _is_unread(leaf):
        raise UserError(f"{file} has '{name}' as an object of '{leaf.origin}', which is not read: save a plain tensor")
    tensor = leaf.numpy() if isinstance(leaf, Tensor) else leaf()
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise UserError(f"{file} has the tensor '{name}' in {tensor.dtype}, but weights have floating-point numbers")
    return tensor


def _as_number(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = parse_json(value)
            return number if type(number) in {int, float} and math.isfinite(number) else value
    is_number = isinstance(value, Tensor) and math.prod(value.shape) == 1
    return value.numpy().item() if is_number else value


def _as_options(node: Any) -> Any:
    """Returns options that are JSON or pairs as a dict, and others as they are."""
    with contextlib.suppress(ValueError):
        parsed = parse_json(node) if isinstance(node, str) else node
        node = parsed if isinstance(parsed, dict | list) else node
    is_pairs = isinstance(node, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in node
    )
    return dict(node) if is_pairs else node


def _find(path: str, model: str) -> pathlib.Path:
    """Returns the path of a file, or of one of `FILES` in a folder."""
    file = pathlib.Path(path)
    if file.is_dir():
        file = first_file(file, FILES)
        if file is None:
            raise UserError(
                f'{path} has none of {", ".join(FILES)}{has(path)}: give the path of the weights of {model}'
            )
    if not file.is_file():
        raise UserError(f'{path} does not exist: give the path of the weights of {model} ({" or ".join(FILES)})')
    if file.name in FILES and file.with_name(ADAPTER).is_file():
        raise UserError(f'{file.parent} has an adapter ({ADAPTER}) beside its weights: merge the adapter into them')
    return file


def folder_of(path: str) -> pathlib.Path:
    """Returns the path of a folder, or the folder of a file."""
    return pathlib.Path(path) if pathlib.Path(path).is_dir() else pathlib.Path(path).parent


def first_file(folder: pathlib.Path, names: Iterable[str]) -> pathlib.Path | None:
    """Returns the path of the first of some files that a folder has; None if it has none of them."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def has(folder: str) -> str:
    """Returns the rest of a message that a folder lacks files: those that it has."""
    names = [file.name for file in pathlib.Path(folder).iterdir() if file.is_file()]
    return f', but {list_names(names)}' if names else ''


def _open(file: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a file of weights, or of the files that an index names."""
    if not file.name.endswith('.index.json'):
        return {'.safetensors': _open_safetensors, '.npz': _open_npz}.get(file.suffix, torch_files.load)(file)
    places = read_declared(Index, file).weight_map
    content = {}
    for name in sorted({*map(str, places.values())}):
        check_within(name, str(file))
        content |= _open(file.with_name(name))
    absent = places.keys() - content.keys()
    if absent:
        raise UserError(f'{file} names {list_names(absent)}, which its files lack: download them again')
    return content


def _open_safetensors(file: pathlib.Path) -> dict[str, Any]:
    """Returns the readers of the tensors, and the metadata, where options are JSON."""
    try:
        tensors = safetensors.safe_open(file, framework='numpy')
        metadata = tensors.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f'{file} is not a complete safetensors file ({error}): download it again') from error
    for key, text in metadata.items():
        with contextlib.suppress(ValueError):
            metadata[key] = parse_json(text)
        if key in OPTIONS and not isinstance(metadata[key], dict):
            raise UserError(f"{file} has metadata '{key}' that are not a JSON object: write it again")

    def read(name: str) -> np.ndarray:
        try:
            return tensors.get_tensor(name)
        except (AttributeError, TypeError, safetensors.SafetensorError):  # numpy has no such type
            dtype = tensors.get_slice(name).get_dtype()
            raise UserError(
                f"{file} has the tensor '{name}' in {dtype}, which cannot be read: convert it to float16 or float32"
            ) from None

    return metadata | {name: functools.partial(read, name) for name in tensors.keys()}  # noqa: SIM118


def _open_npz(file: pathlib.Path) -> dict[str, Any]:
    try:
        size = file.stat().st_size
        with zipfile.ZipFile(file) as archive:
            held = sum(info.file_size for info in archive.infolist())
        if held > COMPRESSED * size:
            raise UserError(f'{file} holds {held:,} bytes in {size:,}, which weights do not: download it again')
        with file.open('rb') as opened, np.load(opened) as archive:
            tensors = dict(archive)
    except (OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f'{file} is not a complete NumPy archive ({error}): download it again') from error
    return {name: functools.partial(tensors.get, name) for name in tensors}
