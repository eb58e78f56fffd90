"""Sections of a config: what each of them configures, the defaults of its keys, and the functions that it binds."""

import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, NamedTuple

import jax

from jitm.config import names
from jitm.config.build import parameters_of
from jitm.config.hints import check_keys, check_value, is_array
from jitm.config.schema import FIRST
from jitm.errors import ArgumentError, UserError

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)
PLAIN = (bool, int, float, str, tuple, NoneType)  # types of defaults that a config states
TRACEABLE = '; use jax.numpy instead of numpy, and jnp.where instead of if or boolean indices'


class Section(NamedTuple):
    """What a section of a config configures: its keys are the arguments of a function or class.

    Attributes:
      key: The key that names the function or class; '' if it is always `function`.
      package: The package of the names, or the functions and classes by name.
      function: The function or class of a section without a name.
      own: A predicate of the objects of user modules that may be named, see `names.resolve`; None for none.
      default: The name if the section gives none; None if it must give one.
      null: The name, or the section, that stands for nothing; None if there must be something.
      takes: The arguments that the caller supplies.
      settable: Arguments that the config may set, and that the caller supplies if it does not.
      inputs: A predicate of further arguments that the caller supplies if the config does not set them.
      wrapper: Maps the named function to one that wraps it and has further keys, or to None for no wrapping. That
        function takes the named one as the argument with the name of `key`.
      extra: Functions whose arguments are optional keys, too.
      returns: The type of the result, and its description for an error.
    """

    key: str = ''
    package: str | Mapping[str, Callable] = ''
    function: Callable | None = None
    own: Callable[[Any], bool] | None = None
    default: str | None = None
    null: str | Mapping[str, Any] | None = None
    takes: Collection[str] = ()
    settable: Collection[str] = ()
    inputs: Callable[[inspect.Parameter], bool] = lambda parameter: False
    wrapper: Callable[[Callable], Callable | None] | None = None
    extra: Collection[Callable] = ()
    returns: tuple[type, str] = (object, '')

    def functions(self, node: Mapping[str, Any], where: str, imports: bool = True) -> list[Callable]:
        """Returns the function that a section names, and the one that wraps it; none if its name stands for nothing.

        Args:
          node: The section.
          where: Its dotted key, for messages.
          imports: Whether a module of the user is imported, see `names.resolve`.

        Raises:
          UserError: If it names no function that it may name.
        """
        if not self.key:
            return [self.function] if self.function else []
        check_keys(node, node, where=where, required=[self.key] if self.default is None else [])
        name = node.get(self.key, self.default)
        key = f'{where}.{self.key}'
        listed = isinstance(self.package, Mapping)
        check_value(key, name, Literal[*self.package] if listed else str)
        if name == self.null:
            return []
        if listed:
            named = self.package[name]
        else:
            named = names.resolve(self.package, name, where=key, own=self.own, imports=imports)
        try:
            outer = self.wrapper(named) if self.wrapper else None
        except ArgumentError as error:
            raise error.in_section(where) from None
        return [named, outer] if outer else [named]

    def keys(self, function: Callable) -> dict[str, inspect.Parameter]:
        """Returns the arguments of a function that are keys of the section; arrays are not."""
        supplied = {self.key, *self.takes, *getattr(function, 'keywords', ())} - {*self.settable}
        parameters = parameters_of(function).items()
        return {name: p for name, p in parameters if name not in supplied and not is_array(p.annotation)}

    def supplied(self, function: Callable) -> set[str]:
        """Returns the arguments of a function that the caller may supply."""
        parameters = parameters_of(function).items()
        return {name for name, p in parameters if name in (*self.takes, *self.settable) or self.inputs(p)}

    def arguments(self, functions: Iterable[Callable]) -> dict[str, inspect.Parameter]:
        """Returns all keys that a section may have besides its name, see `functions`."""
        keys = {}
        for function in (*functions, *self.extra):
            keys |= self.keys(function)
        return keys


Sections = Mapping[str, Section]  # pattern of a dotted key -> its section; the first match counts


class Bound(functools.partial):
    """A function or class with the arguments that a section of the config sets.

    A call leaves out keywords that the function does not take or that the config has set. An ArgumentError becomes a
    UserError that names the config key, and any error in code of the user becomes one that names the line.

    Attributes:
      where: The dotted key of the section.
      setting: The key that names the function, and its value: the subject of a message.
      own: Whether the function is the user's.
      accepted: The keywords of a call that are not left out.
      returns: See `Section`.
    """

    where: str
    setting: str
    own: bool
    accepted: Collection[str]
    returns: tuple[type, str]

    def __call__(self, *args: Any, **supplied: Any) -> Any:
        """Calls the function."""
        keywords = {key: value for key, value in supplied.items() if key in self.accepted}
        with blame(f'{self.setting}, but it', self.own):
            try:
                made = super().__call__(*args, **keywords)
            except ArgumentError as error:
                raise error.in_section(self.where) from error
        kind, description = self.returns
        if not isinstance(made, kind):
            raise UserError(f'{self.setting}, but it returns {type(made).__name__}: return {description}')
        return made


@contextlib.contextmanager
def blame(subject: str, own: bool) -> Iterator[None]:
    """Raises any error of code of the user within the block again, as a UserError that names the line.

    Args:
      subject: The subject of the message.
      own: Whether code of the user runs in the block.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not own:
            raise
        hint = TRACEABLE if isinstance(error, VALUE_ERRORS) else ''
        raise UserError(f'{subject} fails: {names.describe(error)}{hint}') from error


@functools.cache
def _pattern(pattern: str) -> re.Pattern:
    """Compiles a pattern of dotted keys to a regular expression: `*` is one part of a key, `**` one or more parts."""
    return re.compile(re.escape(pattern).replace(r'\*\*', '.+').replace(r'\*', '[^.]+'))


def find_section(path: str, sections: Sections) -> Section | None:
    """Returns the section with a dotted key; None if none is declared."""
    path = path.removeprefix(FIRST)
    return next((section for pattern, section in sections.items() if _pattern(pattern).fullmatch(path)), None)


def find_sections(
    config: Mapping[str, Any], sections: Sections, prefix: str = ''
) -> Iterator[tuple[str, Section, dict[str, Any]]]:
    """Yields the dotted key, the declaration and the value of each declared section of a config, outer ones first."""
    for key, node in config.items():
        if isinstance(node, Mapping):
            section = find_section(f'{prefix}{key}', sections)
            if section:
                yield f'{prefix}{key}', section, node
            yield from find_sections(node, sections, f'{prefix}{key}.')


def complete(config: Mapping[str, Any], sections: Sections, imports: bool = True) -> dict[str, Any]:
    """Returns a config with every default of the functions that it names.

    Args:
      config: A nested dict.
      sections: Its sections.
      imports: Whether modules of the user are imported; otherwise a section whose function cannot be resolved stays
        unchanged.

    Raises:
      UserError: If `imports` is True and a section names no function that it may name.
    """
    config = copy.deepcopy(dict(config))
    for path, section, node in find_sections(config, sections):
        if node == section.null:
            continue
        try:
            functions = section.functions(node, path, imports)
        except UserError:
            if imports:
                raise
            continue
        if functions and section.key:
            node.setdefault(section.key, section.default)
        for function in functions:
            for key, parameter in section.keys(function).items():
                if key not in section.settable and type(parameter.default) in PLAIN:
                    node.setdefault(key, parameter.default)
    return config


def bind(section: Section, node: Mapping[str, Any], where: str, imports: bool = True) -> Bound | None:
    """Binds a section of a config.

    Args:
      section: What it configures.
      node: The section.
      where: Its dotted key, for messages.
      imports: Whether a module of the user is imported, see `names.resolve`.

    Returns:
      The function; if another one wraps it, that. None if it stands for nothing.

    Raises:
      UserError: If a key is unknown (naming the nearest), missing or of a wrong value.
    """
    if node == section.null:
        return None
    functions = section.functions(node, where, imports)
    keywords = {key: value for key, value in node.items() if key != section.key}
    parameters = section.arguments(functions) if functions else {}
    outer = section.arguments(functions[1:])
    optional = set().union(*map(section.supplied, functions), *map(parameters_of, section.extra))
    required = {key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    check_keys(keywords, parameters, where=where, required=[key for key in parameters if key in required - optional])
    for key, value in keywords.items():
        check_value(f'{where}.{key}', value, parameters[key].annotation)
    keywords = {key: tuple(value) if isinstance(value, list) else value for key, value in keywords.items()}
    bound = None
    setting = f"config key '{where}.{section.key}' is '{node.get(section.key)}'"
    for function in functions:
        keys = [key for key in section.keys(function) if key in keywords and (bound or key not in outer)]
        bound = Bound(function, **{key: keywords[key] for key in keys}, **({section.key: bound} if bound else {}))
        bound.where = where
        bound.setting = setting
        bound.own = names.is_own(function)
        bound.returns = section.returns
        bound.accepted = section.supplied(function) - {*bound.keywords}
    return bound


def build(config: Mapping[str, Any], sections: Sections) -> dict[str, Bound | None]:
    """Binds every declared section of a config, see `bind`, and returns the functions by the dotted keys of these."""
    declared = {path: (section, node) for path, section, node in find_sections(config, sections)}
    parts = {}
    for path, (section, node) in declared.items():
        own_keys = {key: node[key] for key in node if f'{path}.{key}' not in declared}
        parts[path] = bind(section, own_keys, path)
    return parts


def own_names(config: Mapping[str, Any], sections: Sections, imports: bool = True) -> dict[str, str]:
    """Returns the functions and classes of the user that a config names, by their keys.

    Args:
      config: The config, or sections of it.
      sections: Its sections.
      imports: Whether modules of the user are imported, see `names.resolve`.
    """
    user_names = {}
    for path, section, node in find_sections(config, sections):
        named = section.functions(node, path, imports) if section.own else []
        if named and names.is_own(named[0]):
            user_names[f'{path}.{section.key}'] = node[section.key]
    return user_names
