"""Names of groups of runs, by the config keys in which the groups differ."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

ABSENT = object()
SECTIONS = ('terms', 'model')  # named first, since most comparisons are about them
SELF_EVIDENT = ('loss', 'name', 'source')  # keys whose values are named without the key
# Customary names of runs: the value of the first of these keys in a config, wherever the values differ.
TOPICS = (
    ('terms.ranking.loss',),
    ('model.name',),
    ('model.image.network.name', 'model.image.name'),
    ('model.text.name',),
    ('data.root', 'data.source'),
)


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the keys in which `config_keys` differ, with the keys of `SECTIONS` first.

    Returns:
      {key: the value in each config, `ABSENT` in configs without the key}.
    """
    values = {}
    for key in sorted(set().union(*configs), key=lambda key: (*_outside(key), key)):
        row = [flat.get(key, ABSENT) for flat in configs]
        if row.count(row[0]) < len(row):
            values[key] = row
    return values


def _outside(key: str) -> list[bool]:
    """Returns for each of `SECTIONS` whether a key is outside of it."""
    return [not key.startswith(f'{section}.') for section in SECTIONS]


def distinguish(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns short descriptions of the differences of configs: 'max_of_hinges', 'learning_rate=0.002', 'no epsilon'.

    The ranking loss, the model, its image network, its text encoder and the data are included if they differ. Another
    key is included if it separates configs that agree in all keys before it. Losses come before models, models before
    the rest; within each, keys that all configs have come before others, and names before numbers.

    Args:
      configs: The `config_keys` of different configs.

    Returns:
      For each config {key: word}, with the same keys in all.
    """
    values = differing_keys(configs)
    keys = set().union(*configs)
    chosen = _topics(configs)
    words = {key: _words(key, row, keys) for key, row in values.items()} | chosen

    def rank(key: str) -> tuple[bool | str, ...]:
        return *_outside(key), ABSENT in values[key], any('=' in word for word in words[key]), key

    def count(described: Mapping[str, Sequence[str]]) -> int:
        return max(1, len(set(zip(*described.values(), strict=True))))

    for key in sorted(values, key=rank):
        longer = chosen | {key: words[key]}
        if count(longer) > count(chosen):
            chosen = longer
    names = []
    for n in range(len(configs)):
        names.append({key: row[n] for key, row in chosen.items()})
    return names


def _topics(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the words of the `TOPICS` in which flattened configs differ, by the first key of each."""
    words = {}
    for keys in TOPICS:
        values = [_topic(config, keys) for config in configs]
        if all(values) and len(set(values)) > 1:
            separator = '/' if 'data.root' in keys else '.'
            words[keys[0]] = [_shorten(value, values, separator) for value in values]
    return words


def _topic(flat: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Returns the value of the first of some keys that a flattened config sets; '' if it sets none."""
    return next((str(flat[key]).rstrip('/') for key in keys if flat.get(key)), '')


def _words(key: str, values: Sequence[Any], keys: Collection[str]) -> list[str]:
    """Returns `key=value` for each value, or the values alone if the key is self-evident and unique in its section."""
    section = key.partition('.')[0]
    last = key.rpartition('.')[2]
    similar = [name for name in keys if (name.partition('.')[0], name.rpartition('.')[2]) == (section, last)]
    if last in SELF_EVIDENT and ABSENT not in values and similar == [key]:
        return [_shorten(value, values) for value in values]
    short = _shorten(key, keys)
    return [f'no {short}' if value is ABSENT else f'{short}={value}' for value in values]


def _shorten(path: str, paths: Collection[str], separator: str = '.') -> str:
    """Returns the shortest tail of a dotted path that is not also a tail of another path; FILE.py:NAME is FILE.NAME."""
    longer = [separator + name.replace('.py:', '.') for name in paths if name != path]
    path = path.replace('.py:', '.')
    parts = path.split(separator)
    for n in range(1, len(parts)):
        end = separator.join(parts[-n:])
        if not any(name.endswith(separator + end) for name in longer):
            return end
    return path
