"""The keys of `--config.key=value`: keys of a config, and arguments of the functions and classes that it names."""

import ast
import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jitm import names
from jitm.commands.unread import unread
from jitm.config import FIRST, check_shared, flatten
from jitm.data.load import TRAIN_KEYS, is_loader
from jitm.errors import UserError, did_you_mean
from jitm.hints import check_value
from jitm.models.make import is_module
from jitm.training.objective import TERM_KEYS


class Named(NamedTuple):
    """What a key names.

    Attributes:
      package: The package of the function or class.
      own: Whether an object of the user's modules may be named, see `names.resolve`.
      kept: Keys of the section besides the arguments.
    """

    package: str
    own: Callable[[Any], bool] | None = None
    kept: Collection[str] = ()


MODEL = Named('jitm.models', is_module, ('embed_dim',))  # which its modules read, too
NAMED = {  # pattern of a key -> what its value names
    'terms.*.loss': Named('jitm.losses', callable, TERM_KEYS),
    'model.name': MODEL,
    'members.*.model.name': MODEL,
    '*model.*.name': Named('jitm.layers', is_module),
    'optimizer.name': Named('jitm.training.optimizer', callable),
    'data.source': Named('jitm.data', is_loader, TRAIN_KEYS),
    'candidates.source': Named('jitm.training.sources', callable),
    'labels.source': Named('jitm.training.sources.labels', callable),
    'relevance.source': Named('jitm.data'),
    'scene_graphs.source': Named('jitm.data'),
}
SHORT = {'lr': 'learning_rate', 'wd': 'weight_decay', 'bs': 'batch_size', 'dim': 'embed_dim'}
BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}
OPTIONAL = {f'data.{key}' for key in TRAIN_KEYS}  # keys that a config may lack


def with_arguments(config: ConfigDict, given: Mapping[str, str | None]) -> ConfigDict:
    """Returns a config with the given values; keys may be arguments of what the config names.

    Where another function or class is named, the keys of its section that it does not have are left out.

    Args:
      config: The config of a preset.
      given: Dotted key -> text of its value, None for a flag without one.

    Returns:
      A copy of the config.

    Raises:
      UserError: if a key is unknown, a value has another type, or there is no function or class of a given name.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        for key in sorted(given, key=lambda key: (key.count('.'), not _named(key))):  # a section after what it is in
            section, _, leaf = key.rpartition('.')
            if (node := _enter(config, section)) is None:
                continue
            if named := _named(key):
                node[leaf] = given[key]
                kept = {leaf, *named.kept, *_parameters(config, section)}
                for other in {*node} - kept - {name.removeprefix(f'{section}.') for name in given}:
                    del node[other]
            elif leaf not in node and leaf in (parameters := _parameters(config, section)):
                default = parameters[leaf].default
                node[leaf] = default if isinstance(default, bool | int | float | str | tuple) else _literal(given[key])
            elif node.get(leaf) is None and (leaf in node or key in OPTIONAL):
                node[leaf] = _literal(given[key])
        for section in (key.removesuffix('.name') for key in given if _named(key) is MODEL):
            key = f'{section}.embed_dim'
            if _find(config, key) and key not in given and not _has(config, section, 'embed_dim'):
                del _find(config, section).embed_dim
    for key, text in given.items():
        check_shared(key)
        section, _, leaf = key.rpartition('.')
        node = _find(config, section)
        if leaf not in (node or ()):
            arguments = (f'{section}.{name}' for name in _parameters(config, section))
            known = *flatten(config.to_dict()), *arguments, *OPTIONAL
            nearest = next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.7)), find_key(config, leaf))
            hint = f", did you mean '{nearest}'?" if nearest else did_you_mean(key, config)
            if not nearest and (naming := _naming(config, section)):
                hint = f': {naming[1]} is {naming[2]}, which has no {leaf}'
            raise UserError(f"config key '{key}' is unknown{hint}")
        with node.unlocked(), node.ignore_type():
            node[leaf] = _parse(key, text, node[leaf])
    return config


def find_key(config: ConfigDict, name: str) -> str | None:
    """Returns the first key of a config whose last part is nearest to a name; None if none is near."""
    keys = {key.rpartition('.')[2]: key for key in reversed([*flatten(config.to_dict())])}
    nearest = difflib.get_close_matches(SHORT.get(name, name), keys, n=1, cutoff=0.8)
    return keys[nearest[0]] if nearest else None


def check_read(config: ConfigDict, keys: Iterable[str]) -> None:
    """Raises a UserError if nothing reads one of the keys that are given, since another one is not set."""
    for key in keys:
        if reason := unread(config.to_dict(), key):
            raise UserError(f"config key '{key}' {reason}")


def _named(key: str) -> Named | None:
    key = key.removeprefix(FIRST)
    return next((named for pattern, named in NAMED.items() if fnmatchcase(key, pattern)), None)


def _find(config: ConfigDict, key: str) -> Any:
    """Returns the value of a dotted key, None if a config has none."""
    node = config
    for part in filter(None, key.split('.')):
        if not isinstance(node, ConfigDict) or part not in node:
            return None
        node = node[part]
    return node


def _enter(config: ConfigDict, section: str) -> ConfigDict | None:
    """Returns a section; an empty one is made if it is an argument of what the section around it names."""
    node, (parent, _, leaf) = _find(config, section), section.rpartition('.')
    if node is None and leaf in _parameters(config, parent):
        node = _find(config, parent)[leaf] = ConfigDict()
    return node if isinstance(node, ConfigDict) else None


def _parameters(config: ConfigDict, section: str) -> Mapping[str, inspect.Parameter]:
    """Returns the arguments of what a section names, none if it names nothing."""
    if naming := _naming(config, section):
        named, key, name = naming
        return inspect.signature(names.resolve(named.package, name, where=key, own=named.own)).parameters
    return {}


def _naming(config: ConfigDict, section: str) -> tuple[Named, str, str] | None:
    """Returns what a section may name, the key and the name that it has there; None if it names nothing."""
    found = ((_named(key), key, _find(config, key)) for key in (f'{section}.{x}' for x in ('loss', 'name', 'source')))
    return next((naming for naming in found if naming[0] and naming[2]), None)


def _has(config: ConfigDict, section: str, argument: str) -> bool:
    """Whether what a section names, or one of the sections in it, has an argument."""
    node = _find(config, section)
    inner = (f'{section}.{key}' for key, value in node.items() if isinstance(value, ConfigDict))
    return argument in _parameters(config, section) or any(_has(config, one, argument) for one in inner)


def _literal(text: str | None) -> Any:
    """Returns the value of a text of Python, else the text; True for a flag without one."""
    try:
        return True if text is None else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _parse(key: str, text: str | None, value: Any) -> Any:
    """Returns the value of a key from its text, of the type of the present value."""
    kind, new = type(value), _literal(text)
    if kind is ConfigDict and new == {}:
        return ConfigDict()
    if kind is ConfigDict:
        raise UserError(f"config key '{key}' is a sub-dict; set one of its keys")
    if kind is str and text is not None:
        new = text
    elif kind is bool:
        new = BOOLEANS.get(str(new).lower(), new)
    elif kind is tuple and not isinstance(new, tuple | list):
        new = (new,)
    check_value(key, new, kind)
    return new if value is None else kind(new)
