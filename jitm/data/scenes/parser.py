"""The meaning of a caption of the grammar, the inverse of `grammar.render`, and captions that are false by one change.

The kinds of changes follow SugarCrepe (Hsieh et al., 2023).
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from jitm.data.scenes import grammar
from jitm.data.scenes.grammar import NUMERALS, PRONOUNS, SYNONYMS, TEMPLATES
from jitm.data.scenes.graphs import COLOURS, INVERSE, SHAPES, SIZES, Phrase, Relation, SceneGraph, Statement, holds
from jitm.data.text.word_level import tokenize

KINDS = (
    *('swap_attribute', 'swap_relation', 'replace_attribute', 'replace_object', 'replace_relation'),
    *('add_attribute', 'add_object'),
)
WITH_OBJECT = {  # template -> one with the same meaning that mentions another object
    '{a} is {ab} {b} .': '{a} is {ab} {b} , and there is also {c} .',
    'there is {a} {ab} {b} .': 'besides {c} , the {picture} shows {a} {ab} {b} .',
    'the {picture} shows {a} and {b} .': 'a {picture} with {a} , {b} and {c} .',
}
_VALUES = {'size': SIZES, 'colour': COLOURS, 'shape': SHAPES}


class Parsed(NamedTuple):
    """The arguments of `grammar.render` for a caption."""

    template: str
    statement: Statement
    words: dict[str, str]


def _synonyms(notions: Iterable[str]) -> dict[str, str]:
    synonyms: dict[str, str] = {}
    for notion in notions:
        synonyms |= dict.fromkeys(SYNONYMS.get(notion, (notion,)), notion)
    return synonyms


_SIZE = _synonyms(SIZES)
_NOUN = _synonyms((*SHAPES, 'shape'))
_PLURAL = {grammar.plural(noun): shape for noun, shape in _NOUN.items()}
_PLACE = _synonyms(('above', 'below'))
for _side in ('left', 'right'):
    _PLACE |= {word.format(_side): f'{_side} of' for word in SYNONYMS['side']}
_PLACE_OF_IT = {words: predicate for predicate, words in PRONOUNS.items()}
_COUNT = {numeral: count for count, numeral in NUMERALS.items()}


def _any(words: Iterable[str]) -> str:
    return f'(?:{"|".join(words)})'


_ATTRIBUTES = f'(?:{_any(_SIZE)} )?(?:{_any(COLOURS)} )?'
_ONE = rf'an? {_ATTRIBUTES}{_any(_NOUN)}'
_GROUP = f'{_any(_COUNT)} {_ATTRIBUTES}{_any(_PLURAL)}'
_FIELDS = {'picture': _any(SYNONYMS['picture']), 'g': _GROUP, 'total': _GROUP, **dict.fromkeys('abc', _ONE)}


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    """Returns a pattern of the captions of a template, with a group for each of its fields."""
    parts = re.split(r'{(\w+)}', template.replace('a {picture}', 'an? {picture}'))
    for n in range(1, len(parts), 2):
        place = _PLACE_OF_IT if parts[n].endswith('_it') else _PLACE
        parts[n] = f'(?P<{parts[n]}>{_FIELDS.get(parts[n]) or _any(place)})'
    return re.compile(''.join(parts).removesuffix('.') + r'\.')


def _phrase(text: str) -> Phrase:
    count, *attributes, noun = text.split()
    size = next((_SIZE[word] for word in attributes if word in _SIZE), None)
    colour = next((word for word in attributes if word in COLOURS), None)
    shape = _NOUN.get(noun) or _PLURAL[noun]
    return Phrase(size, colour, None if shape == 'shape' else shape, _COUNT.get(count, 1))


def _words(text: str) -> dict[str, str]:
    """Returns the synonym that a caption uses for each key of `SYNONYMS`, the first one where it uses none."""
    used = {}
    for notion, words in SYNONYMS.items():
        patterns = {word: rf'\b{word.format("(left|right)")}(e?s)?\b' for word in sorted(words, key=len, reverse=True)}
        used[notion] = next((word for word, pattern in patterns.items() if re.search(pattern, text)), words[0])
    return used


def read(text: str) -> Parsed | None:
    """Reads a caption of the grammar.

    Args:
      text: A caption in any case. Synonyms may be mixed, and `a` and `an` confused; nothing else may differ.

    Returns:
      The arguments with which `grammar.render` makes the caption; None if it is not in the grammar.
    """
    text = ' '.join(tokenize(text))
    for template in TEMPLATES:
        match = _pattern(template).fullmatch(text)
        if match:
            break
    else:
        return None
    fields = match.groupdict()
    slots = grammar.SLOTS[template]
    total = _phrase(fields['total']) if 'total' in fields else Phrase()
    if total[:3] != Phrase()[:3]:  # the total of shapes of one color or size is in no template
        return None
    relations = []
    for subject, target in grammar.RELATED[template]:
        pair = slots[subject] + slots[target]
        predicate = _PLACE[fields[pair]] if pair in fields else _PLACE_OF_IT[fields[f'{pair}_it']]
        relations.append(Relation(subject, predicate, target))
    phrases = tuple(_phrase(fields[slot]) for slot in slots)
    statement = Statement(phrases, tuple(relations), total.count if 'total' in fields else None)
    return Parsed(template, statement, _words(text))


def parse(text: str) -> Statement | None:
    """Returns the meaning of a caption, see `read`; None if it is not in the grammar."""
    parsed = read(text)
    return parsed and parsed.statement


def falsify(caption: str, graph: SceneGraph, rng: np.random.Generator) -> dict[str, str]:
    """Makes a caption of each kind that is false.

    Args:
      caption: A true caption of the grammar.
      graph: The scene.
      rng: The random generator.

    Returns:
      Some of `KINDS` -> a caption that is false of the scene; without the kinds that change nothing.
    """
    parsed = read(caption)
    changes = list(_changes(parsed))
    false = {}
    for n in rng.permutation(len(changes)):
        kind, template, statement = changes[n]
        if kind not in false and not holds(statement, graph):
            false[kind] = grammar.render(template, statement, parsed.words)[0]
    return {kind: false[kind] for kind in KINDS if kind in false}


def _changes(parsed: Parsed) -> Iterator[tuple[str, str, Statement]]:
    """Yields kind, template and statement of every change of one part of a caption."""
    template, statement, _ = parsed
    for kind, swapped in grammar.exchanges(statement):
        yield f'swap_{kind}', template, swapped
    for n, phrase in enumerate(statement.phrases):
        for name, values in _VALUES.items():
            mentioned = getattr(phrase, name)
            if mentioned or name != 'shape':
                kind = 'replace_object' if name == 'shape' else 'replace_attribute' if mentioned else 'add_attribute'
                for value in sorted(set(values) - {mentioned}):
                    yield kind, template, statement.changed({n: phrase._replace(**{name: value})})
    for n, relation in enumerate(statement.relations):
        for predicate in sorted(set(INVERSE) - {relation.predicate, INVERSE[relation.predicate]}):
            yield 'replace_relation', template, statement.changed({}, {n: relation._replace(predicate=predicate)})
    if template in WITH_OBJECT:
        for properties in itertools.product(*_VALUES.values()):
            phrases = (*statement.phrases, Phrase(*properties))
            yield 'add_object', WITH_OBJECT[template], statement._replace(phrases=phrases)
