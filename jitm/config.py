"""From a configuration to constructed objects, with errors that name the key."""

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jitm.errors import UserError, did_you_mean


def resolve(package: str, name: str) -> Callable:
    """Finds `module.function` inside a package of jitm.

    Args:
      package: such as `jitm.losses`.
      name: dotted path inside it, such as `ranking.max_of_hinges`.

    Raises:
      UserError: if there is no such module or no such public name in it.
    """
    module_name, _, attribute = name.rpartition('.')
    path = f'{package}.{module_name}' if module_name else package
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not path.startswith(error.name or ' '):
            raise
        raise UserError(f"the config names '{name}', but there is no module {path}") from None
    public = {key: value for key, value in vars(module).items() if not key.startswith('_')}
    known = [key for key, value in public.items() if callable(value) and value.__module__ == path]
    if attribute not in known:
        raise UserError(f"the config names '{name}', but {path} has no '{attribute}'{did_you_mean(attribute, known)}")
    return getattr(module, attribute)


def bind(function: Callable, keywords: Mapping[str, Any], *, where: str, later: Collection[str] = ()) -> Callable:
    """Makes a sub-dict of the config the keyword arguments of exactly one function or constructor.

    Args:
      function: what the sub-dict configures.
      keywords: the sub-dict.
      where: the sub-dict's key, for messages.
      later: the arguments that the caller supplies, by name.

    Returns:
      The function with these keywords bound.

    Raises:
      UserError: if a keyword is unknown (naming the nearest) or one is missing.
    """
    parameters = inspect.signature(function).parameters
    known = set(parameters) - set(later)
    for key in keywords:
        if key not in known:
            raise UserError(f"config key '{where}.{key}' is unknown{did_you_mean(key, known)}")
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in {*keywords, *later}
    ]
    if required:
        raise UserError(f"config key '{where}.{required[0]}' is missing and has no default")
    return functools.partial(function, **keywords)


def choose(section: Mapping[str, Any], key: str, *, where: str) -> tuple[Any, dict[str, Any]]:
    """Takes the key of a sub-dict that names what it configures; returns it and the other keys.

    Raises:
      UserError: if the key is missing.
    """
    rest = dict(section)
    if key not in rest:
        raise UserError(f"config key '{where}.{key}' is missing; see configs/default.py")
    return rest.pop(key), rest


def check_keys(section: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    """Raises a UserError unless a sub-dict has exactly these keys."""
    for key in section:
        if key not in known:
            raise UserError(f"config key '{where}.{key}' is unknown{did_you_mean(key, known)}")
    for key in known:
        if key not in section:
            raise UserError(f"config key '{where}.{key}' is missing; see configs/default.py")


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Writes a nested dict as `a.b.c` -> value."""
    flat = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f'{prefix}{key}.') if nested else {f'{prefix}{key}': value}
    return flat


def training_relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flattened config without what cannot change a number: the `run` sub-dict and where files lie."""
    irrelevant = ('data.root', 'vocabulary.path', 'relevance.path', 'offline.path')  # their content is compared
    return {
        key: value for key, value in flatten(config).items() if not key.startswith('run.') and key not in irrelevant
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every training-relevant key in which two configs differ, as `key: old -> new`."""
    old, new = training_relevant(old), training_relevant(new)
    return [
        f'{key}: {old.get(key, "absent")} -> {new.get(key, "absent")}'
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]


def load_split(data: Mapping[str, Any], split: str, root: str | None = None) -> Any:
    """Loads a split of the data set a config's `data` names: dict(source='precomp.load', ...) -> Split.

    Args:
      data: the sub-dict.
      split: such as 'dev'.
      root: where the data lie now, if not at the config's `data.root`.

    Raises:
      UserError: if a root is given but the source reads no folder, or the data cannot be read.
    """
    if root is not None:
        if 'root' not in data:
            raise UserError(f"--data_root does not apply: the data source '{data['source']}' reads no folder")
        data = {**data, 'root': root}
    source, keywords = choose(data, 'source', where='data')
    return bind(resolve('jitm.data', source), keywords, where='data', later=('split',))(split)


def load_relevance(relevance: Mapping[str, Any], split: Any) -> Any:
    """Makes what a config's `relevance` names: dict(source='cider.from_captions') -> Relevance; None for source ''."""
    return _of_split(relevance, split, 'relevance')


def load_scene_graphs(graphs: Mapping[str, Any], split: Any) -> Any:
    """Makes what a config's `scene_graphs` names: dict(source='scene_graphs.rules') -> T graphs; None for source ''."""
    return _of_split(graphs, split, 'scene_graphs')


def _of_split(section: Mapping[str, Any], split: Any, where: str) -> Any:
    source, keywords = choose(section, 'source', where=where)
    if not source:
        check_keys(keywords, (), where=where)
        return None
    return bind(resolve('jitm.data', source), keywords, where=where, later=('split',))(split)


def member_model(config: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """The part of a config that describes a member's matcher: its own `model`, or that of the member it copies.

    Raises:
      UserError: if a member is no dict.
    """
    for name, section in config['members'].items():
        if not isinstance(section, Mapping):
            raise UserError(f"config key 'members.{name}' is {section!r}; give a dict, such as dict(rule='gradient')")
    section = config['members'][member]
    copied = config['members'].get(section.get('of', ''), section)
    return copied.get('model') or config['model']


def make_model(model: Mapping[str, Any], vocab_size: int) -> Any:
    """Builds the matcher a config's `model` names: dict(name='vse.VSE', ...) -> Matcher.

    A sub-dict with a `name` of its own is a module of `jitm.layers`, built likewise. Each gets the vocabulary's size
    and the model's `embed_dim` if it takes them.
    """
    shared = {'vocab_size': vocab_size} | {key: model[key] for key in ('embed_dim',) if key in model}

    def build(package: str, section: Mapping[str, Any], where: str) -> Any:
        name, keywords = choose(section, 'name', where=where)
        function = resolve(package, name)
        for key in ('image', 'text'):
            if key in keywords and not isinstance(keywords[key], Mapping):
                raise UserError(f"config key '{where}.{key}' must be a dict with the name of a module in jitm.layers")
        for key, value in keywords.items():
            if isinstance(value, Mapping):
                keywords[key] = build('jitm.layers', value, f'{where}.{key}')
            if isinstance(value, list):  # which a tuple is after its way through JSON
                keywords[key] = tuple(value)
        own = {key: value for key, value in shared.items() if key in inspect.signature(function).parameters}
        later = {'parent', 'name', *own.keys() - keywords.keys()}
        return bind(function, keywords, where=where, later=later)(**own | keywords)

    return build('jitm.models', model, 'model')
