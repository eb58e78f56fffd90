"""Construction of objects from a config, with errors that name the config key."""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from flax import linen as nn

from jitm import names
from jitm.errors import UserError, did_you_mean

OLD_KEYS = {'rounds', 'rankings'}  # of configs before checkpoint format 4


def bind(function: Callable, keywords: Mapping[str, Any], *, where: str, later: Collection[str] = ()) -> Callable:
    """Binds a sub-dict of the config as the keyword arguments of one function or constructor.

    Args:
      function: the function or class to configure.
      keywords: the sub-dict.
      where: the sub-dict's key, for messages.
      later: names of the arguments that the caller supplies.

    Returns:
      The function with these keywords bound. When it is called, a ValueError that jitm raises becomes a UserError that
      names the config key.

    Raises:
      UserError: if a keyword is unknown (naming the nearest) or missing.
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
    bound = _Bound(function, **keywords)
    bound.where = where
    return bound


class _Bound(functools.partial):
    """A partial function that names its config key in errors."""

    where: str

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        try:
            return super().__call__(*args, **keywords)
        except ValueError as error:
            if not _is_raised_by_jitm(error):
                raise
            raise _user_error(error, self.where, self.keywords) from error


def _is_raised_by_jitm(error: ValueError) -> bool:
    """Whether an error is about an argument; a ValueError of a dependency is a bug and must keep its traceback."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get('__name__', '').startswith('jitm.')


def _user_error(error: ValueError, where: str, arguments: Collection[str]) -> UserError:
    """Adds the config key to a message, whose first word usually is the name of an argument."""
    argument, _, rest = str(error).partition(' ')
    if argument.partition('.')[0] in arguments:
        return UserError(f"config key '{where}.{argument}' {rest}")
    return UserError(f"config key '{where}': {error}")


@contextlib.contextmanager
def model_keys() -> Iterator[None]:
    """Names the config key in errors of models that are initialized within the block.

    Flax calls `setup` only when a model is initialized or applied, so that `bind` cannot see these errors. A ValueError
    that jitm raises becomes a UserError with the key of the innermost module, such as 'model.text'.
    """

    def call(method: Callable, args: tuple, keywords: dict, context: nn.module.InterceptorContext) -> Any:
        try:
            return method(*args, **keywords)
        except ValueError as error:
            if not _is_raised_by_jitm(error):
                raise
            module = context.module
            arguments = [field.name for field in dataclasses.fields(module)]
            raise _user_error(error, '.'.join(('model', *module.path)), arguments) from error

    with nn.intercept_methods(call):
        yield


def choose(section: Mapping[str, Any], key: str, *, where: str) -> tuple[Any, dict[str, Any]]:
    """Splits a sub-dict into the value of the key that names the configured object, and the other keys.

    Raises:
      UserError: if the key is missing.
    """
    rest = dict(section)
    if key not in rest:
        raise UserError(f"config key '{where}.{key}' is missing; see jitm/configs/default.py")
    return rest.pop(key), rest


def check_keys(section: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    """Raises a UserError unless a sub-dict, or the whole config where '', has exactly the known keys."""
    prefix = f'{where}.' if where else ''
    for key in section:
        if key not in known:
            raise UserError(f"config key '{prefix}{key}' is unknown{did_you_mean(key, known)}")
    for key in known:
        if key not in section:
            raise UserError(f"config key '{prefix}{key}' is missing; see jitm/configs/default.py")


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Returns a nested dict as a flat one, `a.b.c` -> value."""
    flat = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f'{prefix}{key}.') if nested else {f'{prefix}{key}': value}
    return flat


def to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config as it is read from a run directory: tuples are lists.

    Raises:
      UserError: if it is no dict, or has a value that cannot be written as JSON.
    """
    if not isinstance(config, Mapping):
        raise UserError(f'the config is of {type(config).__name__}; give a dict, such as that of ConfigDict.to_dict()')
    for key, value in flatten(config).items():
        if '' in key.split('.'):
            raise UserError(f"config key '{key}' has an empty name; name it, or leave it out")
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise UserError(
                f"config key '{key}' is of {type(value).__name__}, which cannot be written to config.json; give a "
                'number, a string, a tuple or a dict'
            ) from None
    return json.loads(json.dumps(config))


def check_format(config: Any, workdir: Any) -> None:
    """Raises a UserError if the saved config of a run is no dict, has keys of an older format or has none."""
    if isinstance(config, Mapping) and not OLD_KEYS.isdisjoint(config):
        raise UserError(f'{workdir} holds a run of an older format; train it again with this version in a new workdir')
    if not isinstance(config, Mapping) or not config:
        raise UserError(f'{workdir / "config.json"} is damaged; restore it, or choose a new workdir')


def training_relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flattened config without the keys that cannot affect training: `run` and the paths of files."""
    irrelevant = ('data.root', 'vocabulary.path', 'relevance.path', 'offline.path')  # the contents are compared instead
    return {
        key: value for key, value in flatten(config).items() if not key.startswith('run.') and key not in irrelevant
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the training-relevant keys in which two configs differ, as `key: old -> new`."""
    return changes(training_relevant(old), training_relevant(new))


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the keys in which two configs differ, as `key: old -> new`."""
    old, new = flatten(old), flatten(new)
    return [
        f'{key}: {old.get(key, "absent")} -> {new.get(key, "absent")}'
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]


def load_split(data: Mapping[str, Any], split: str, root: str | None = None) -> Any:
    """Loads a split of the data set of a config: dict(source='precomp.load', ...) -> Split.

    Args:
      data: the sub-dict `data`.
      split: such as 'dev'.
      root: folder of the data, if it is not the config's `data.root`.

    Raises:
      UserError: if a root is given but the source reads no folder, or the data cannot be read.
    """
    if not isinstance(split, str) or split != os.path.basename(split):
        raise UserError(f"the split is '{split}'; give the name of one, such as dev, and its folder as data.root")
    if root is not None:
        if 'root' not in data:
            raise UserError(f"--data_root does not apply: the data source '{data['source']}' reads no folder")
        data = {**data, 'root': root}
    source, keywords = choose(data, 'source', where='data')
    return bind(names.resolve('jitm.data', source, where='data.source'), keywords, where='data', later=('split',))(
        split
    )


def load_relevance(relevance: Mapping[str, Any], split: Any) -> Any:
    """Loads the caption metric of a config: dict(source='cider.from_captions') -> Relevance; None for source ''."""
    load = source_of(relevance, 'relevance')
    return load and load(split)


def load_scene_graphs(graphs: Mapping[str, Any], split: Any) -> Any:
    """Loads the scene graphs of a config: dict(source='scene_graphs.rules') -> T graphs; None for source ''."""
    load = source_of(graphs, 'scene_graphs')
    return load and load(split)


def source_of(section: Mapping[str, Any], where: str) -> Callable | None:
    """Returns the function `split -> data` of a sub-dict dict(source=, ...); None for source ''.

    Args:
      section: the sub-dict.
      where: its key.

    Raises:
      UserError: if the source or one of its arguments is unknown.
    """
    source, keywords = choose(section, 'source', where=where)
    if not source:
        check_keys(keywords, (), where=where)
        return None
    return bind(names.resolve('jitm.data', source, where=f'{where}.source'), keywords, where=where, later=('split',))


def member_model(config: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """Returns the model section of a member: its own `model`, that of the member it copies, or the config's `model`."""
    section = config['members'][member]
    copied = config['members'].get(section.get('of', ''), section)
    return copied.get('model') or config['model']


def is_module(value: Any) -> bool:
    """Whether a value is a class of models or of their modules."""
    return isinstance(value, type) and issubclass(value, nn.Module)


def own_names(model: Mapping[str, Any]) -> list[str]:
    """Returns the names in a model section that are not of jitm; their modules are imported already."""
    found = []
    for key, name in flatten(model).items():
        package = 'jitm.models' if key == 'name' else 'jitm.layers'
        if key.rpartition('.')[2] == 'name':
            named = names.resolve(package, name, where=key, own=is_module, imports=False)
            found += [name] if names.is_own(named) else []
    return found


def make_model(model: Mapping[str, Any], vocab_size: int, *, own: bool = False, imports: bool = False) -> Any:
    """Builds the matcher of a config: dict(name='vse.VSE', ...) -> Matcher.

    A nested sub-dict is a module of `jitm.layers`. Each module gets the vocabulary's size and the model's `embed_dim`
    if it has these arguments.

    Args:
      model: The model section of the config.
      vocab_size: The number of words of the vocabulary.
      own: Whether the classes may be of modules of the user, see `names.resolve`.
      imports: Whether these modules are imported; only for a config that the user wrote.

    Raises:
      UserError: if a name or an argument is unknown or missing.
    """
    shared = {'vocab_size': vocab_size} | {key: model[key] for key in ('embed_dim',) if key in model}
    read = set()

    def build(package: str, section: Mapping[str, Any], where: str) -> Any:
        name, keywords = choose(section, 'name', where=where)
        function = names.resolve(package, name, where=f'{where}.name', own=is_module if own else None, imports=imports)
        for key in ('image', 'text'):
            if key in keywords and not isinstance(keywords[key], Mapping):
                raise UserError(f"config key '{where}.{key}' must be a dict with the name of a module in jitm.layers")
        for key, value in keywords.items():
            if isinstance(value, Mapping):
                keywords[key] = build('jitm.layers', value, f'{where}.{key}')
            if isinstance(value, list):  # a tuple that was stored as JSON
                keywords[key] = tuple(value)
        handed = {key: value for key, value in shared.items() if key in inspect.signature(function).parameters}
        read.update(handed.keys() - keywords.keys())
        if section is model and 'embed_dim' in read - handed.keys():  # one of its modules reads it
            del keywords['embed_dim']
        later = {'parent', 'name', 'vocab_size', *handed.keys() - keywords.keys()}
        return bind(function, keywords, where=where, later=later)(**handed | keywords)

    return build('jitm.models', model, 'model')
