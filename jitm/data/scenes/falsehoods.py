"""Captions that are false of a scene by one change, of the kinds of SugarCrepe (Hsieh et al., 2023)."""

from collections.abc import Iterator

import numpy as np

from jitm.data.scenes.grammar import exchanges, render
from jitm.data.scenes.graphs import COLOURS, INVERSE, SHAPES, SIZES, Phrase, SceneGraph, Statement, holds
from jitm.data.scenes.parser import Parsed, read

KINDS = (
    *('swap_attribute', 'swap_relation', 'replace_attribute', 'replace_object', 'replace_relation'),
    *('add_attribute', 'add_object'),
)
WITH_OBJECT = {  # template -> one that says the same and mentions another object
    '{a} is {ab} {b} .': '{a} is {ab} {b} , and there is also {c} .',
    'there is {a} {ab} {b} .': 'besides {c} , the {picture} shows {a} {ab} {b} .',
    'the {picture} shows {a} and {b} .': 'a {picture} with {a} , {b} and {c} .',
}
_VALUES = {'size': SIZES, 'colour': COLOURS, 'shape': SHAPES}


def falsify(caption: str, graph: SceneGraph, rng: np.random.Generator) -> dict[str, str]:
    """Makes a caption of each kind that is false.

    Args:
      caption: A true caption of the grammar.
      graph: The scene.
      rng: The random generator.

    Returns:
      Some of `KINDS` -> a caption that is false of the scene; without the kinds that find nothing to change.
    """
    parsed = read(caption)
    changed = list(_changes(parsed))
    false = {}
    for n in rng.permutation(len(changed)):
        kind, template, statement = changed[n]
        if kind not in false and not holds(statement, graph):
            false[kind] = render(template, statement, parsed.words)[0]
    return {kind: false[kind] for kind in KINDS if kind in false}


def _changes(parsed: Parsed) -> Iterator[tuple[str, str, Statement]]:
    """Yields kind, template and statement of every change of one part of a caption."""
    template, statement, _ = parsed
    for kind, swapped in exchanges(statement):
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
        for properties in np.ndindex(*map(len, _VALUES.values())):
            added = Phrase(*(values[n] for n, values in zip(properties, _VALUES.values(), strict=True)))
            yield 'add_object', WITH_OBJECT[template], statement._replace(phrases=(*statement.phrases, added))
