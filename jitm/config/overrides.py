"""The keys of `--config.key=value`: those of a config with every default."""

import ast
import copy
import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from jitm.config.build import flatten
from jitm.config.hints import check_value
from jitm.config.schema import FIRST, check_shared
from jitm.config.section import Sections, complete, find_section, find_sections
from jitm.errors import UserError, did_you_mean

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


def override(config: Mapping[str, Any], values: Mapping[str, str | None], sections: Sections) -> dict[str, Any]:
    """Returns a config with every default, and the given values.

    Names come first. Where a section names another function or class than before, its keys that are no arguments of
    that are left out.

    Args:
      config: The config of a preset.
      values: Dotted key -> text of its value, None for a flag without one.
      sections: The functions and classes of the sections.

    Returns:
      A copy of the config.

    Raises:
      UserError: If a key is unknown or has no effect, a value has another type, or no function or class has a given
        name.
    """
    config = copy.deepcopy(dict(config))
    sections_of_names = {key: find_section(key.rpartition('.')[0], sections) for key in values}
    named = {key: part for key, part in sections_of_names.items() if part and key.endswith(f'.{part.key}') and part.key}
    for key, section in sorted(named.items(), key=lambda item: -item[0].count('.')):
        node = _set(config, key, values[key], sections)
        path = key.rpartition('.')[0]
        arguments = section.arguments(section.functions(node, path))
        for unknown in node.keys() - {section.key, *section.takes, *arguments}:
            del node[unknown]
        outer, dot, name = path.rpartition('.')
        read = set()
        for where, part, keys in find_sections({name: node}, sections, f'{outer}{dot}'):
            read |= part.arguments(part.functions(keys, where)).keys()
        for shared in node.keys() & {*section.settable} - read:
            del node[shared]
    config = complete(config, sections)
    for key in sorted(values.keys() - named.keys()):
        _set(config, key, values[key], sections)
    for key in values:
        reason = unread(config, key)
        if reason:
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
        neighbour = '.'.join((*key.split('.')[:-1], name))
        if fnmatchcase(key, pattern) and values.get(neighbour, readers[0]) not in readers:
            return f"is not read where '{neighbour}' is {values[neighbour]!r}: change that, or leave it out"
    return None


def _set(config: dict[str, Any], key: str, text: str | None, sections: Sections) -> dict[str, Any]:
    """Sets a key and returns its section, which is made if it is declared within another one."""
    check_shared(key)
    path, _, leaf = key.rpartition('.')
    outer, _, name = path.rpartition('.')
    section = find_section(path, sections)
    node = _find(config, path)
    parent = _find(config, outer)
    nested = find_section(outer, sections) is not None
    if node is None and section and nested and parent is not None:
        node = parent[name] = {}
    keys = dict(node) if isinstance(node, dict) else {}
    if isinstance(node, dict) and section is None and nested:
        keys.setdefault(leaf, 0.0)  # a dict of numbers, as `optimizer.factors`
    elif isinstance(node, dict) and section:
        arguments = section.arguments(section.functions(node, path)) if section.key in ('', *node) else {}
        keys = {section.key: ''} | {name: parameter.default for name, parameter in arguments.items()} | keys
    if leaf not in keys:
        raise UserError(f"config key '{key}' is unknown{_hint(config, key, keys, sections)}")
    node[leaf] = _parse(key, text, keys[leaf])
    return node


def _find(config: Mapping[str, Any], path: str) -> Any:
    """Returns the value of a dotted key, the config for '', None if a config has none."""
    node = config
    for part in filter(None, path.split('.')):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _hint(config: Mapping[str, Any], key: str, keys: Mapping[str, Any], sections: Sections) -> str:
    """Returns a hint to append to a message about an unknown key, where the section has these."""
    path, _, leaf = key.rpartition('.')
    section = find_section(path, sections)
    node = _find(config, path)
    if not isinstance(node, Mapping):
        nearest = difflib.get_close_matches(key, flatten(config), n=1, cutoff=0.7)
        return f", did you mean '{nearest[0]}'?" if nearest else did_you_mean(key, config)
    nearest = difflib.get_close_matches(leaf, keys, n=1, cutoff=0.7)
    if nearest:
        return f", did you mean '{f'{path}.{nearest[0]}'.lstrip('.')}'?"
    elsewhere = find_key(config, leaf)
    if elsewhere:
        return f", did you mean '{elsewhere}'?"
    if section and node.get(section.key):
        return f': {path}.{section.key} is {node[section.key]}, which has no {leaf}'
    return did_you_mean(leaf, keys)


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
