"""The page of the config options: the defaults with their comments, and the arguments of all that a config can name."""

import ast
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import tokenize
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import optax
from flax import linen as nn

from jitm import losses
from jitm.config.build import parameters_of
from jitm.config.hints import BOUNDS, KINDS
from jitm.config.schema import EvaluationKeys, RunKeys
from jitm.data.pairs.cider import Relevance
from jitm.data.scene_graphs.tag_rules import CaptionGraph
from jitm.data.scenes import SceneSplit
from jitm.data.splits import Split
from jitm.models.make import is_module
from jitm.training.members import RULES, make_member
from jitm.training.optimizer import optimizer
from jitm.training.sections import PARTS
from jitm.training.source import Source

CONFIGS = Path(__file__).parent.parent / 'configs'
SUPPLIED = {'name', 'parent', 'split', 'vocab_size'}  # not by the config
INTRODUCTION = """# Config options

`--config.KEY=VALUE` of `jitm train` changes a key, such as `--config.terms.ranking.margin=0.3`.

## Defaults

These are all keys of a config, with the values of VSE++ on Flickr30K. A value such as `'ranking.max_of_hinges'` names a
function or class, and its [arguments](#arguments-by-name) are keys of the same section.

"""
HEAD = '| key | default | |\n|---|---|---|\n'
SECTIONS = {
    **{key: section.function for key, section in PARTS.items() if section.function},
    'members.*': make_member,
    'optimizer': optimizer,
    'evaluation': EvaluationKeys,
    'run': RunKeys,
}


def read_comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Returns the comments behind code and the comments of whole lines of a module, by line."""
    beside = {}
    above = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments = beside if token.line[: token.start[1]].strip() else above
            comments[token.start[0]] = token.string.lstrip('# ')
    return beside, above


def keys_of(node: ast.expr, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Yields the keys of a value of the defaults with their values; a dict has those of its entries."""
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'dict' and node.keywords:
        for keyword in node.keywords:
            yield from keys_of(keyword.value, f'{name}.{keyword.arg}')
    else:
        yield name, node


def defaults(source: str) -> str:
    """Returns the tables of the defaults in the source of their module: keys of the top, then those of each section."""
    beside, above = read_comments(source)
    code = ['', *source.splitlines()]

    def behind(line: int) -> str:
        lines = itertools.takewhile(lambda number: code[number].lstrip().startswith(')'), itertools.count(line, -1))
        text = ' '.join([beside.get(number, '') for number in lines][::-1]).strip()
        return text and f'Also {escaped(text.removeprefix("and").lstrip(", "))}.\n\n'

    def after(line: int) -> str:
        following = (above[number] for number in itertools.takewhile(above.__contains__, itertools.count(line + 1)))
        return ' '.join([beside[line], *following]) if line in beside else ''

    def before(line: int) -> str:
        lines = itertools.takewhile(above.__contains__, itertools.count(line - 1, -1))
        return ' '.join([above[number] for number in lines][::-1])

    top, sections = [], []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign) or not isinstance(target := node.targets[0], ast.Attribute):
            continue
        rows = []
        for key, default in keys_of(node.value, target.attr):
            shown = 'None' if isinstance(default, ast.Call) and default.args else ast.unparse(default)
            rows.append(f'| `{key}` | `{shown}` | {escaped(after(default.end_lineno))} |')
        if isinstance(node.value, ast.Call) and not node.value.args:
            table = HEAD + '\n'.join(rows) + '\n\n' + (behind(node.end_lineno) if len(rows) > 1 else '')
            sections.append(f'### Section {target.attr}\n\n{escaped(before(node.lineno))}\n\n{table}')
        else:
            top += rows
    return HEAD + '\n'.join(top) + '\n\n' + ''.join(sections)


def escaped(comment: str) -> str:
    """Returns a comment as Markdown."""
    return re.sub(r'(<[^>]+>)', r'`\1`', comment).replace('|', r'\|').replace('*', r'\*')


def values(hint: Any) -> str:
    """Returns the values that a hint permits in words, '' for those that no config can hold."""
    origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Annotated:
        limits = [(words, getattr(bound, key, None)) for bound in inner[1:] for key, (_, words) in BOUNDS.items()]
        limits = ' and '.join(f'{words} {limit}' for words, limit in limits if limit is not None)
        return f'{values(inner[0])} {limits}'.strip()
    if origin in (typing.Union, types.UnionType):
        return ' or '.join(filter(None, map(values, inner)))
    if origin is Literal:
        return ', '.join(f'`{value!r}`' for value in inner)
    if origin is nn.Module:
        return 'a dict with the name of a module and its arguments'
    return KINDS[origin][1] if origin in KINDS else ''


def arguments(function: Callable, supplied: Iterable[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Yields name, values and default of each argument of a function or class that a config can set."""
    if typing.is_typeddict(function):
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [(name, hint, inspect.Parameter.empty) for name, hint in hints.items()]
    else:
        parameters = [
            (name, parameter.annotation, parameter.default) for name, parameter in parameters_of(function).items()
        ]
    for name, hint, default in parameters:
        if (permitted := values(hint)) not in ('', 'None') and name not in SUPPLIED.union(supplied):
            yield name, permitted, '' if default is inspect.Parameter.empty else f'`{default!r}`'


def public(package: str) -> Iterator[tuple[str, Callable]]:
    """Yields the name in a config and the object of each public function and class of a package, or of a module."""
    package_module = importlib.import_module(package)
    modules = [module.name for module in pkgutil.walk_packages(getattr(package_module, '__path__', ()), f'{package}.')]
    for path in modules or [package]:
        prefix = f'{path.rpartition(".")[2]}.' if modules else ''
        for name, value in inspect.getmembers(importlib.import_module(path), callable):
            belongs = value.__module__ == path or getattr(value, '__module__', '').startswith(f'{path}.')
            if not name.startswith('_') and belongs:
                yield f'{prefix}{name}', value


def returning(package: str, *hints: Any) -> list[tuple[str, Callable]]:
    """Returns the functions of a package, or of a module, with one of these as the hint of the return value."""
    functions = [(name, value) for name, value in public(package) if inspect.isfunction(value)]
    return [pair for pair in functions if inspect.signature(pair[1]).return_annotation in hints]


def named() -> dict[str, Iterable[tuple[str, Callable]]]:
    """Returns the objects that each key of a config may name: name -> function or class."""
    presets = {name for path in CONFIGS.glob('*.py') for name in re.findall(r"'(\w+\.\w+)'", path.read_text())}

    def modules(package: str) -> list[tuple[str, Callable]]:
        return [pair for pair in public(package) if is_module(pair[1]) and pair[0] in presets]

    return {
        'data.source': [pair for pair in returning('jitm.data', Split, SceneSplit) if pair[0].endswith('.load')],
        'relevance.source': returning('jitm.data', Relevance),
        'scene_graphs.source': returning('jitm.data', tuple[CaptionGraph, ...]),
        'model.name': modules('jitm.models'),
        'model.*.name': modules('jitm.layers'),
        'members.*.rule': RULES.items(),
        'candidates.source': [
            (name.partition('.')[0], make)
            for name, make in returning('jitm.training.sources', Source)
            if name == f'{make.__name__}.{make.__name__}'
        ],
        'terms.*.loss': [pair for pair in public('jitm.losses') if pair[0].rpartition('.')[2] in losses.__all__],
        'optimizer.name': [
            (name, rule)
            for name, rule in returning('jitm.training.optimizer', optax.GradientTransformation)
            if 'learning_rate' in parameters_of(rule)
        ],
    }


def table(function: Callable, supplied: Iterable[str] = ()) -> str:
    """Returns the table of the arguments of a function or class, '' if a config sets none."""
    rows = [f'| `{name}` | {permitted} | {default} |' for name, permitted, default in arguments(function, supplied)]
    return '\n'.join(['| key | value | default |', '|---|---|---|', *rows, '', '']) if rows else ''


def page() -> str:
    """Returns the page in Markdown."""
    parts = [INTRODUCTION, defaults((CONFIGS / 'default.py').read_text()), '## Types and ranges\n\n']
    for key, function in SECTIONS.items():
        parts.append(f'### {key}\n\n{table(function, PARTS[key].takes if key in PARTS else ())}')
    parts.append('## Arguments by name\n\nA key without a default is required.\n\n')
    for key, functions in named().items():
        parts.append(f'### {key}\n\n')
        for name, function in functions:
            parts.append(f'#### {name}\n\n{(inspect.getdoc(function) or "").splitlines()[0]}\n\n{table(function)}')
    return ''.join(parts)
