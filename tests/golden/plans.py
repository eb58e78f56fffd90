"""What all presets bind, as digests: the functions of each part of their plans with all arguments, and their models.

`python -m tests.golden.plans` writes `plans.json` anew, and with `--compare` prints which parts of which systems differ
from the file. Both take names of systems: `python -m tests.golden.plans --compare vse scan`. A row has the digests of
all presets of a system that start, both stages; that of `settings of traces` has those of `PRESETS` without changes.

Defaults count as if they were given, and of the functions that only bind others, those of `PLUMBING`, nothing counts
but what they bind.
"""

import dataclasses
import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from jitm import configs
from jitm.commands import settings
from jitm.models.make import make_model
from jitm.training.plan import Plan, make_plan
from jitm.training.sections import complete
from jitm.training.stages import split_stages
from tests.configs.settings import load
from tests.golden.presets import PRESETS, digest, main

FEW = 'settings of traces'
NAMES = (FEW, *configs.SYSTEMS)
PLUMBING = ('jitm.config.', 'jitm.data.load', 'jitm.training.plan')
SETTINGS = (
    *('seed', 'epochs', 'batch_size', 'encode_chunk', 'drop_last', 'length_multiple', 'precision', 'masks'),
    *('generator', 'own', 'evaluation', 'run', 'warnings'),
)
BOUND = ('load_split', 'make_vocabulary', 'load_scene_graphs', 'make_optimizer', 'load_pretrained')
PARTS = ('augmentation', 'members', 'terms')
LEFT_OUT = ('arguments', 'conditions')  # of terms and sources: bound to the loss already; see `test_exclusions`


def describe(value: Any) -> str:
    """Returns the text of a part of a plan, the same in each process."""
    if isinstance(value, str | int | float | None):
        return repr(value)
    if isinstance(value, Mapping):
        return f'{{{", ".join(f"{key}: {describe(value[key])}" for key in sorted(value))}}}'
    if isinstance(value, np.ndarray | jax.Array):
        return digest(value.dtype, value.shape, np.asarray(value).tobytes())
    if isinstance(value, functools.partial):
        return describe_call(value)
    if inspect.isfunction(value):
        return describe_function(value)
    if isinstance(value, type):
        return f'{value.__module__}.{value.__qualname__}'
    if isinstance(value, tuple | list) and not hasattr(value, '_fields'):
        return f'({", ".join(map(describe, value))})'
    names = getattr(value, '_fields', None) or [field.name for field in dataclasses.fields(value)]
    fields = {name: getattr(value, name) for name in names if name not in LEFT_OUT}
    return f'{type(value).__qualname__}{describe(fields)}'


def describe_call(bound: functools.partial) -> str:
    """Returns the text of a function with some of its arguments, and the defaults of the others."""
    inner = [*bound.args, *bound.keywords.values()]
    if is_plumbing(bound.func) and (texts := set(find_bound(inner))):
        return f'<{", ".join(sorted(texts))}>'
    given = inspect.signature(bound.func).bind_partial(*bound.args, **bound.keywords)
    given.apply_defaults()
    return f'{describe(bound.func)}{describe(given.arguments)}'


def describe_function(function: Callable) -> str:
    """Returns the text of a function and of what it encloses; of one that binds others, only what it binds."""
    function = inspect.unwrap(function)
    if isinstance(function, functools.partial):
        return describe_call(function)
    enclosed = {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if cell.cell_contents is not function
    }
    if is_plumbing(function) and enclosed:
        return f'<{", ".join(sorted(set(find_bound(enclosed.values()))))}>'
    return f'{function.__module__}.{function.__qualname__}{describe(enclosed)}'


def is_plumbing(function: Callable) -> bool:
    """Returns whether a function may be one that only binds others."""
    return getattr(function, '__module__', '').startswith(PLUMBING)


def find_bound(values: Iterable[Any]) -> Iterator[str]:
    """Yields the texts of the functions with arguments among some values, and of those that these enclose."""
    for value in values:
        inner = inspect.unwrap(value) if callable(value) else None
        if isinstance(inner, functools.partial):
            yield describe_call(inner)
        elif inspect.isfunction(inner) and is_plumbing(inner):
            yield from find_bound(cell.cell_contents for cell in inner.__closure__ or ())


@functools.cache
def describe_model(section: str) -> str:
    """Returns the text of the model of a section, as JSON, with ten words."""
    model = make_model(json.loads(section), vocab_size=10)
    assert isinstance(model, nn.Module)
    return repr(model)


def describe_plan(plan: Plan) -> dict[str, str]:
    """Returns the text of each part of a plan."""
    texts = {name: describe(getattr(plan, name)) for name in (*BOUND, *PARTS)}
    texts['source'] = describe(plan.source)
    texts['settings'] = describe({name: getattr(plan, name) for name in SETTINGS})
    models = [f'{name}: {describe_model(json.dumps(section))}' for name, section in sorted(plan.models.items())]
    return texts | {'models': ', '.join(models)}


def plans_of(preset: str) -> Iterator[Plan]:
    """Yields the plan of each stage of a preset."""
    config = complete(load(preset))
    if not config['stages']:
        yield make_plan(config)
        return
    stages = split_stages(config, Path('run'))
    yield make_plan(stages.first)
    yield make_plan(stages.second, pending=True)


def presets_of(name: str) -> Sequence[str]:
    """Returns the presets of a row that start."""
    if name == FEW:
        return tuple(dict.fromkeys(setting.partition(' ')[0] for setting in PRESETS))
    listed = (preset for preset in settings.presets() if preset.partition(':')[0] == name)
    return [preset for preset in listed if settings.is_accepted(preset)]


def hash_plans(name: str) -> dict[str, str]:
    """Returns the digest of each part of the plans of the presets of a row."""
    lines: dict[str, list[str]] = {}
    for preset in presets_of(name):
        for number, plan in enumerate(plans_of(preset), 1):
            for part, text in describe_plan(plan).items():
                lines.setdefault(part, []).append(f'{preset} stage {number}: {text}')
    return {part: digest(*texts) for part, texts in lines.items()} | {'plans': len(lines['source'])}


def hash_all(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Hashes the plans of rows."""
    rows = {}
    for name in names:
        try:
            rows[name] = hash_plans(name)
        except Exception as error:
            logging.exception('%s', name)
            rows[name] = {'error': f'{type(error).__name__}: {error}'}
        print(f'{name} done', file=sys.stderr, flush=True)
    return rows


if __name__ == '__main__':
    main('plans.json', hash_all, NAMES)
