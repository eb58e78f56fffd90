"""The keys of `--config.key=value`: keys of a config, and arguments of the functions and classes that it configures."""

import ast
import copy
import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from jitm.config import names
from jitm.config.build import flatten, parameters_of
from jitm.config.hints import check_value
from jitm.config.schema import FIRST, check_shared
from jitm.errors import UserError, did_you_mean


class Section(NamedTuple):
    """The functions or classes that a section of a config configures.

    Attributes:
      key: The key that names a function or class.
      package: The package of the function or class.
      own: Whether it may be defined in a module of the user.
      further: Functions and classes whose arguments are keys too, whatever is named.
      kept: Further keys that stay where another function or class is named.
    """

    key: str
    package: str
    own: bool = False
    further: tuple[Callable, ...] = ()
    kept: tuple[str, ...] = ()


Sections = Mapping[str, Section]  # pattern of the dotted key -> its section
SHORT = {'lr': 'learning_rate', 'wd': 'weight_decay', 'bs': 'batch_size', 'dim': 'embed_dim'}
BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}
SWITCHES = {  # pattern -> keys; a key that fits the pattern has no effect unless one of these is set
    'masking.*': ('masking.num_views',),
    'offline.*': ('offline.path', 'stages.top_h_texts', 'stages.top_h_images'),
    'synthesis.*': ('synthesis.generator',),
    'augmentation.keep_special_tokens': ('augmentation.change_words',),
}
READ_WITH = {  # pattern -> a key of the same section, and its values with which a key that fits has an effect
    'vocabulary.min_count': ('path', ('',)),
    'data.min_area': ('crop', ('random',)),
    '*model.*norm_padding': ('mlp', ('plain', 'residual', 'residual_on_input')),
    '*model.*lambda_lse': ('aggregation', ('LogSumExp',)),
    '*model.*bidirectional': ('recurrent', (True,)),
}


def override(config: Mapping[str, Any], given: Mapping[str, str | None], sections: Sections) -> dict[str, Any]:
    """Returns a config with the given values.

    A key may be missing from the config if it is an argument of the section's function or class. Where another one is
    named, keys of the section that are not its arguments are left out.

    Args:
      config: The config of a preset.
      given: Dotted key -> text of its value, None for a flag without one.
      sections: The functions and classes of the sections.

    Returns:
      A copy of the config.

    Raises:
      UserError: If a key is unknown or has no effect, a value has another type, or no function or class has a given
        name.
    """
    config = copy.deepcopy(dict(config))
    for key in sorted(given, key=lambda key: (key.count('.'), not _is_name(key, sections))):  # names come first
        check_shared(key)
        path, _, leaf = key.rpartition('.')
        section, known = _enter(config, path, sections), _arguments(config, path, sections)
        numbers = _maps_names(config, path, sections)
        if section is None or not (leaf in section or leaf in known or _is_name(key, sections) or numbers):
            raise UserError(f"config key '{key}' is unknown{_hint(config, key, known, sections)}")
        present = section[leaf] if leaf in section else known[leaf].default if leaf in known else 0.0 if numbers else ''
        section[leaf] = _parse(key, given[key], present)
        if _is_name(key, sections):
            kept = {leaf, *_section(path, sections).kept, *_arguments(config, path, sections)}
            for other in section.keys() - kept:
                del section[other]
    for key in given:
        path, _, leaf = key.rpartition('.')
        if leaf == 'name' and _section(path, sections).kept and not _reads(config, path, 'embed_dim', sections):
            _find(config, path).pop('embed_dim', None)
        if reason := unread(config, key):
            raise UserError(f"config key '{key}' {reason}")
    return config


def find_key(config: Mapping[str, Any], name: str) -> str | None:
    """Returns the first key of a config whose last part is nearest to a name; None if none is near."""
    keys = {key.rpartition('.')[2]: key for key in reversed(flatten(config))}
    nearest = difflib.get_close_matches(SHORT.get(name, name), keys, n=1, cutoff=0.8)
    return keys[nearest[0]] if nearest else None


def unread(config: Mapping[str, Any], key: str) -> str | None:
    """Returns why a dotted key of a config has no effect and what to do, for a message; None if it has one."""
    if key.startswith(FIRST):
        return unread(config['stages']['first'], key.removeprefix(FIRST))
    values = flatten(config)
    for pattern, switches in SWITCHES.items():
        if fnmatchcase(key, pattern) and key not in switches and not any(map(values.get, switches)):
            return f"is not read unless '{switches[0]}' is set: set both, or leave it out"
    for pattern, (name, readers) in READ_WITH.items():
        other = '.'.join((*key.split('.')[:-1], name))
        if fnmatchcase(key, pattern) and values.get(other, readers[0]) not in readers:
            return f"is not read where '{other}' is {values[other]!r}: change that, or leave it out"
    return None


def _section(path: str, sections: Sections) -> Section | None:
    """Returns the function or class that a section names; None if it names none."""
    path = path.removeprefix(FIRST)
    return next((section for pattern, section in sections.items() if fnmatchcase(path, pattern)), None)


def _is_name(key: str, sections: Sections) -> bool:
    """Returns whether a dotted key names a function or class."""
    path, _, leaf = key.rpartition('.')
    section = _section(path, sections)
    return section is not None and leaf == section.key


def _find(config: Mapping[str, Any], path: str) -> Any:
    """Returns the value of a dotted key, the config for '', None if a config has none."""
    node = config
    for part in filter(None, path.split('.')):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _enter(config: dict[str, Any], path: str, sections: Sections) -> dict[str, Any] | None:
    """Returns a section; an empty one is made if it is an argument of the enclosing section's function."""
    node, (parent, _, leaf) = _find(config, path), path.rpartition('.')
    if node is None and leaf in _arguments(config, parent, sections):
        node = _find(config, parent)[leaf] = {}
    return node if isinstance(node, dict) else None


def _arguments(config: Mapping[str, Any], path: str, sections: Sections) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a section's function or class."""
    section, node = _section(path, sections), _find(config, path)
    if section is None or not isinstance(node, Mapping):
        return {}
    functions = list(section.further)
    if name := node.get(section.key):
        own = callable if section.own else None
        functions.append(names.resolve(section.package, name, where=f'{path}.{section.key}', own=own))
    return {key: one for function in functions for key, one in parameters_of(function).items()}


def _maps_names(config: Mapping[str, Any], path: str, sections: Sections) -> bool:
    """Returns whether a section is an argument that maps any name to a number, as `optimizer.factors` does."""
    parent, _, leaf = path.rpartition('.')
    argument = _arguments(config, parent, sections).get(leaf)
    return argument is not None and typing.get_origin(argument.annotation) is Mapping


def _reads(config: Mapping[str, Any], path: str, argument: str, sections: Sections) -> bool:
    """Returns whether a section's function or class, or that in a nested section, has an argument."""
    inner = (f'{path}.{key}' for key, value in _find(config, path).items() if isinstance(value, dict))
    return argument in _arguments(config, path, sections) or any(
        _reads(config, one, argument, sections) for one in inner
    )


def _hint(config: Mapping[str, Any], key: str, arguments: Mapping[str, Any], sections: Sections) -> str:
    """Returns a hint to append to a message about an unknown key of a section with these arguments."""
    path, _, leaf = key.rpartition('.')
    section, node = _section(path, sections), _find(config, path)
    if not isinstance(node, Mapping):
        nearest = difflib.get_close_matches(key, flatten(config), n=1, cutoff=0.7)
        return f", did you mean '{nearest[0]}'?" if nearest else did_you_mean(key, config)
    known = [*{**node, **arguments}]
    if nearest := difflib.get_close_matches(leaf, known, n=1, cutoff=0.7):
        return f", did you mean '{f'{path}.{nearest[0]}'.lstrip('.')}'?"
    if found := find_key(config, leaf):
        return f", did you mean '{found}'?"
    if section and node.get(section.key):
        return f': {path}.{section.key} is {node[section.key]}, which has no {leaf}'
    return did_you_mean(leaf, known)


def _parse(key: str, text: str | None, present: Any) -> Any:
    """Parses the value of a key, with the type of the present value if configs may have that type."""
    kind = type(present)
    try:
        new = True if text is None else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        new = text
    if isinstance(present, dict):
        if new != {}:
            raise UserError(f"config key '{key}' is a sub-dict; set one of its keys")
    elif kind is str and text is not None:
        new = text
    elif kind is bool:
        new = BOOLEANS.get(str(new).lower(), new)
    elif kind is tuple and not isinstance(new, tuple | list):
        new = (new,)
    if kind not in (bool, int, float, str, tuple):
        return new
    check_value(key, new, kind)
    return kind(new)
