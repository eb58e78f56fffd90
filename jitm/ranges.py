"""The type and the range of every key of a config, checked once before anything is built from it.

Patterns are dotted keys of `configs/default.py` and of the published settings: `*` is any name, and `**` any number of
names. The first pattern that fits a key counts. Keys of models, losses and data sources that are not in `RANGES` are
checked where they are used.
"""

import functools
import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

from jitm import config as config_lib
from jitm.errors import UserError
from jitm.types import DTYPES


class Number(NamedTuple):
    """Numbers in an interval.

    Attributes:
      low: the minimum.
      high: the maximum; also without one, infinity is not permitted.
      integer: whether the number must be an integer.
      open_low: whether `low` itself is not permitted.
      open_high: whether `high` itself is not permitted.
      optional: whether None is permitted.
    """

    low: float
    high: float = math.inf
    integer: bool = False
    open_low: bool = False
    open_high: bool = False
    optional: bool = False

    def refuse(self, value: Any) -> str | None:
        """Returns what to do about a value, None if it is permitted."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.integer else Real):
            return f'it must be {"an integer" if self.integer else "a number"}{" or None" if self.optional else ""}'
        if not -math.inf < value < math.inf:
            return 'it must be finite'
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return None if above and below else f'it must be {self._interval()}'

    def _interval(self) -> str:
        if math.isinf(self.high):
            return f'above {self.low}' if self.open_low else f'at least {self.low}'
        return f'in {"(" if self.open_low else "["}{self.low}, {self.high}{")" if self.open_high else "]"}'


class Kind(NamedTuple):
    """Values of some types.

    Attributes:
      types: the types.
      name: what a value must be, for messages.
    """

    types: tuple[type, ...]
    name: str

    def refuse(self, value: Any) -> str | None:
        """Returns what to do about a value, None if it is permitted."""
        return None if isinstance(value, self.types) else f'it must be {self.name}'


class Choice(NamedTuple):
    """One of some values.

    Attributes:
      values: the permitted values.
    """

    values: tuple[str, ...]

    def refuse(self, value: Any) -> str | None:
        """Returns what to do about a value, None if it is permitted."""
        return None if value in self.values else f'take one of {", ".join(self.values)}'


COUNT = Number(1, integer=True)
INDEX = Number(0, integer=True)
NOT_NEGATIVE = Number(0)
POSITIVE = Number(0, open_low=True)
PROBABILITY = Number(0, 1)
RATE = Number(0, 1, open_high=True)  # dropping everything leaves nothing to learn from
TEXT = Kind((str,), 'a string')
FLAG = Kind((bool,), 'True or False')
NAMES = Kind((tuple, list), 'a tuple of names')
DICT = Kind((Mapping,), 'a dict')

Rule = Number | Kind | Choice

RANGES: dict[str, Rule] = {
    'seed': Number(0, 2**32 - 1, integer=True),  # JAX reads 32 bits
    'epochs': COUNT,
    'batch_size': Number(2, integer=True),  # one pair has no negatives
    'drop_last': FLAG,
    'length_multiple': COUNT,
    'data': DICT,
    'data.source': TEXT,
    'data.root': TEXT,
    'data.dev_images': Number(1, integer=True, optional=True),
    'data.*_images': COUNT,
    'data.image_size': COUNT,
    'data.short_side': COUNT,
    'data.interpolation': TEXT,
    'data.crop': TEXT,
    'data.min_area': Number(0, 1, open_low=True),
    'data.flip': FLAG,
    'data.restval': FLAG,
    'data.max_captions': Number(1, integer=True, optional=True),
    'data.seed': INDEX,
    'data.min_tag_score': NOT_NEGATIVE,
    'vocabulary': DICT,
    'vocabulary.path': TEXT,
    'vocabulary.min_count': COUNT,
    'augmentation': DICT,
    'augmentation.drop_regions': RATE,
    'augmentation.change_words': RATE,
    'augmentation.keep_special_tokens': FLAG,
    'augmentation.num_views': COUNT,
    'relevance': DICT,
    'relevance.source': TEXT,
    'relevance.path': TEXT,
    'offline': DICT,
    'offline.path': TEXT,
    'offline.top_h_texts': COUNT,
    'offline.top_h_images': COUNT,
    'stages': DICT,
    'stages.first': DICT,
    'stages.top_h_texts': INDEX,
    'stages.top_h_images': INDEX,
    'stages.fine_tune': FLAG,
    'model': DICT,
    'initialize': DICT,
    'initialize.*': TEXT,
    'members': DICT,
    'members.*': DICT,
    'members.*.rule': TEXT,
    'members.*.of': TEXT,
    'members.*.init_from': TEXT,
    'members.*.learn_from': NAMES,
    'members.*.momentum': PROBABILITY,
    'members.*.model': DICT,
    'candidates': DICT,
    'candidates.source': TEXT,
    'candidates.same_image': TEXT,
    'candidates.num_extra': INDEX,
    'candidates.num_hard': COUNT,
    'masking': DICT,
    'masking.num_views': INDEX,
    'masking.rate': PROBABILITY,
    'masking.mask_prob': PROBABILITY,
    'masking.random_prob': PROBABILITY,
    'scene_graphs': DICT,
    'scene_graphs.source': TEXT,
    'scene_graphs.path': TEXT,
    'scene_graphs.model': TEXT,
    'synthesis': DICT,
    'synthesis.generator': TEXT,
    'synthesis.num_samples': COUNT,
    'synthesis.temperature': POSITIVE,
    'synthesis.num_hard': COUNT,
    'terms': DICT,
    'terms.*': DICT,
    'terms.*.loss': TEXT,
    'terms.*.weight': NOT_NEGATIVE,
    'terms.*.start_epoch': INDEX,
    'terms.*.end_epoch': Number(1, integer=True, optional=True),
    'terms.*.reduction': TEXT,
    'terms.*.rankings': NAMES,
    'terms.*.margin': NOT_NEGATIVE,
    'terms.*.online_margin': NOT_NEGATIVE,
    'terms.*.offline_margin': NOT_NEGATIVE,
    'terms.*.temperature': POSITIVE,
    'terms.*.epsilon': NOT_NEGATIVE,
    'terms.*.alpha': NOT_NEGATIVE,
    'terms.*.beta': NOT_NEGATIVE,
    'terms.*.extreme': Number(0, open_low=True, optional=True),
    'terms.*.*_weight': NOT_NEGATIVE,
    'terms.*.hard': FLAG,
    'terms.*.inverse': FLAG,
    'terms.*.subtract_entropy': FLAG,
    'terms.*.weigh_by_positive': FLAG,
    'optimizer': DICT,
    'optimizer.name': TEXT,
    'optimizer.learning_rate': POSITIVE,
    'optimizer.weight_decay': NOT_NEGATIVE,
    'optimizer.factors': DICT,
    'optimizer.factors.*': NOT_NEGATIVE,
    'optimizer.decay_epochs': COUNT,
    'optimizer.warm_up': RATE,
    'optimizer.b2': Number(0, 1, open_low=True, open_high=True),
    'optimizer.epsilon': POSITIVE,
    'optimizer.clip_norm': POSITIVE,
    'evaluation': DICT,
    'evaluation.split': TEXT,
    'evaluation.member': TEXT,
    'evaluation.every_steps': Number(1, integer=True, optional=True),
    'evaluation.dtype': Choice(tuple(DTYPES)),
    'run': DICT,
    'run.log_every': COUNT,
    'run.checkpoint_every': COUNT,
    'run.prefetch': COUNT,
    'run.memory_mb': COUNT,
    # Models and their modules.
    '**.model.**.name': TEXT,
    '**.model.**.*_dim': COUNT,
    '**.model.**.*_size': COUNT,
    '**.model.**.num_*': COUNT,
    '**.model.**.max_length': Number(2, integer=True),
    '**.model.**.initial_temperature': POSITIVE,
    '**.model.**.*dropout': RATE,
    '**.model.**.graph_layers': INDEX,
    '**.model.**.steps': COUNT,
    '**.model.**.slots': Number(1, integer=True, optional=True),
    '**.model.**.caption_length': Number(2, integer=True),
    '**.model.**.minimum_words': INDEX,
    '**.model.**.alpha': POSITIVE,
    '**.model.**.lambda_softmax': Number(0, 30, open_low=True),  # float32 holds sums of squares of its exponentials
    '**.model.**.lambda_*': POSITIVE,
    '**.model.**.heads': NAMES,
    '**.model.**.depth': COUNT,
    '**.model.**.pooled': FLAG,
    '**.model.**.remat': FLAG,
    '**.model.**.normalize*': FLAG,
    '**.model.**.*_norm': FLAG,
    '**.model.**.norm_padding': FLAG,
    '**.model.**.absolute': FLAG,
    '**.model.**.bidirectional': FLAG,
    '**.model.**.recurrent': FLAG,
    '**.model.**.caption': FLAG,
}
SWITCHES = {  # pattern -> keys; nothing reads what fits the pattern unless one of these is set
    'masking.*': ('masking.num_views',),
    'offline.*': ('offline.path', 'stages.top_h_texts', 'stages.top_h_images'),
    'synthesis.*': ('synthesis.generator',),
    'augmentation.keep_special_tokens': ('augmentation.change_words',),
}
READ_WITH = {  # pattern -> a key of the same section, and its values with which what fits the pattern is read
    'vocabulary.min_count': ('path', ('',)),
    'data.min_area': ('crop', ('random',)),
    '**.model.**.norm_padding': ('mlp', ('plain', 'residual', 'residual_on_input')),
    '**.model.**.lambda_lse': ('aggregation', ('LogSumExp',)),
    '**.model.**.bidirectional': ('recurrent', (True,)),
}
FIRST = 'stages.first.'
SHARED = ('data', 'seed', 'run', 'stages')  # keys of a config that `stages.first` lacks, since the stages share them
EXACT = ('vocabulary', 'evaluation', 'run')  # sections that configure no function or class, which would know its keys


def _expression(pattern: str) -> str:
    names = [r'(?:[^.]+\.)*' if name == '**' else name.replace('*', '[^.]*') + r'\.' for name in pattern.split('.')]
    return ''.join(names).removesuffix(r'\.')


def fits(pattern: str, key: str) -> bool:
    """Whether a dotted key fits a pattern."""
    return re.fullmatch(_expression(pattern), key) is not None


@functools.cache
def rule_of(key: str) -> Rule | None:
    """Returns the rule of a dotted key, None if it has none; `stages.first` has the keys of a config."""
    key = key.removeprefix(FIRST)
    return next((rule for pattern, rule in RANGES.items() if fits(pattern, key)), None)


def unread(config: Mapping[str, Any], key: str) -> str | None:
    """Returns why nothing reads a dotted key of a config and what to do, for a message; None if it is read."""
    if key.startswith(FIRST):
        return unread(config['stages']['first'], key.removeprefix(FIRST))
    values = dict(nodes(config))
    for pattern, switches in SWITCHES.items():
        if fits(pattern, key) and key not in switches and not any(map(values.get, switches)):
            return f"is not read unless '{switches[0]}' is set: set both, or leave it out"
    for pattern, (name, readers) in READ_WITH.items():
        other = '.'.join((*key.split('.')[:-1], name))
        if fits(pattern, key) and values.get(other, readers[0]) not in readers:
            return f"is not read where '{other}' is {values[other]!r}: change that, or leave it out"
    return None


def check_shared(key: str) -> None:
    """Raises a UserError if a dotted key is one that both stages share."""
    section = key.removeprefix(FIRST).partition('.')[0]
    if key.startswith(FIRST) and section in SHARED:
        raise UserError(f"config key '{key}' does not exist: both stages have '{section}' of the config; leave it out")


def nodes(tree: Mapping[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Yields every dotted key of a nested dict with its value, those of sub-dicts too."""
    for key, value in tree.items():
        yield f'{prefix}{key}', value
        if isinstance(value, Mapping):
            yield from nodes(value, f'{prefix}{key}.')


def _keys(section: str) -> list[str]:
    """Returns the keys of a section, or with '' those of the config itself."""
    prefix = f'{section}.' if section else ''
    keys = [pattern.removeprefix(prefix) for pattern in RANGES if pattern.startswith(prefix)]
    return [key for key in keys if '.' not in key]


def _check(config: Mapping[str, Any], prefix: str = '') -> None:
    """Raises a UserError if a config, below a prefix of its keys, has a wrong value, or lacks a key or has another."""
    for key, value in nodes(config, prefix):
        rule = rule_of(key)
        if rule and (remedy := rule.refuse(value)):
            raise UserError(f"config key '{key}' is {reprlib.repr(value)}; {remedy}")
        check_shared(key)
    known = [key for key in _keys('') if not prefix or key not in SHARED]
    config_lib.check_keys(config, known, where=prefix.removesuffix('.'))
    for section in (section for section in EXACT if section in known):
        config_lib.check_keys(config[section], _keys(section), where=f'{prefix}{section}')


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Checks every value of a config that has a rule, and the keys of the config itself.

    Args:
      config: a nested dict with every key of `configs/default.py`.

    Returns:
      The config as it is read from a run directory: tuples are lists.

    Raises:
      UserError: if a value is of another type or out of its range, or cannot be written as JSON, or a key is unknown or
        missing.
    """
    config = config_lib.to_json(config)
    _check(config)
    if 'first' in config['stages']:
        _check(config['stages']['first'], FIRST)
    return config
