"""English captions of scenes, and their hard negatives.

A template has objects a, b, c and a group g: `{a}` is a noun phrase, `{ab}` the relation of a to b, `{ab_it}` the same
with b as a pronoun, `{total}` the number of all objects of the picture, such as `three shapes`.
"""

import itertools
import re
from typing import NamedTuple

import numpy as np

from jitm.data import scene_graphs
from jitm.data.scenes.graphs import INVERSE, Object, Phrase, Relation, SceneGraph, Statement, find_groups, holds

CAPTIONS_PER_IMAGE = 5
TEMPLATES = (
    '{a} is {ab} {b} .',
    '{a} can be seen {ab} {b} .',
    'there is {a} {ab} {b} .',
    'a {picture} of {a} {ab} {b} .',
    '{ab} {b} there is {a} .',
    '{b} with {a} {ab_it} .',
    '{a} is {ab} {b} in a {picture} of {total} .',
    '{a} is {ab} {b} and {ac} {c} .',
    '{a} is {ab} {b} , which is {bc} {c} .',
    '{a} is {ab} {b} , and there is also {c} .',
    'besides {c} , the {picture} shows {a} {ab} {b} .',
    'there are {g} , and {a} is {ab} {b} .',
    'the {picture} shows {g} , {a} and {b} .',
    '{g} and {a} in a {picture} of {total} .',
    'the {picture} shows {a} and {b} .',
    '{total} , one is {a} and another is {b} .',
    'a {picture} with {a} , {b} and {c} .',
    'we see {a} , {b} and {c} .',
)
SYNONYMS = {
    'picture': ('picture', 'image', 'drawing'),
    'shape': ('shape', 'object'),
    'small': ('small', 'little', 'tiny'),
    'large': ('large', 'big'),
    'circle': ('circle', 'disc'),
    'square': ('square', 'box'),
    'diamond': ('diamond', 'rhombus'),
    'ring': ('ring', 'hoop'),
    'side': ('{} of', 'to the {} of', 'on the {} of'),
    'below': ('below', 'under', 'beneath'),
}
PRONOUNS = {'left of': 'to its left', 'right of': 'to its right', 'above': 'above it', 'below': 'below it'}
NUMERALS = {2: 'two', 3: 'three', 4: 'four', 5: 'five'}

# Template -> its slots, in the order of the phrases of its statements; and the subject and object of its relations.
SLOTS: dict[str, str] = {}
RELATED: dict[str, list[tuple[int, int]]] = {}
for _template in TEMPLATES:
    SLOTS[_template] = ''.join(sorted(re.findall('{([abcg])}', _template)))
    _pairs = re.findall('{([abc])([abc])(?:_it)?}', _template)
    RELATED[_template] = [('abc'.index(subject), 'abc'.index(target)) for subject, target in _pairs]

_OBJECT, _ATTRIBUTE, _RELATION, _END = _MARKS = '\x01\x02\x03\x00'
_A_BEFORE_VOWEL = re.compile(rf'\ba(?= [{_OBJECT}{_ATTRIBUTE}]?[aeiou])')
_MARKED = re.compile(rf'([{_OBJECT}{_ATTRIBUTE}{_RELATION}]?)([^{_MARKS}]+)')
_SIZE_PROB = 0.75
_OMIT_COLOUR_PROB = 0.06
_OMIT_SHAPE_PROB = 0.06


class Swap(NamedTuple):
    """A perturbed caption: a true one with two parts exchanged, which makes it false.

    Attributes:
      kind: `attribute` (the colors or the shapes of two mentioned objects) or `relation` (its direction, or its
        subject and object).
      caption: The perturbed caption.
    """

    kind: str
    caption: str


class Caption(NamedTuple):
    """A true caption of a scene.

    Attributes:
      text: The caption.
      graph: Its scene graph, without the picture itself.
      statement: Its meaning.
      template: The template of which `render` made it.
      words: The synonyms with which `render` made it.
      scene: The scene graph of the picture.
    """

    text: str
    graph: scene_graphs.CaptionGraph
    statement: Statement
    template: str
    words: dict[str, str]
    scene: SceneGraph


def describe(graph: SceneGraph, rng: np.random.Generator) -> list[Caption]:
    """Generates five captions of different templates, preferring the objects with the fewest mentions.

    Args:
      graph: A scene with at least one relation.
      rng: The random generator.
    """
    captions = []
    mentions = np.zeros(len(graph.objects))
    for template in (TEMPLATES[t] for t in rng.permutation(len(TEMPLATES))):
        statement = _sample_statement(template, graph, mentions, rng)
        if statement:
            draws = zip(rng.random(len(SYNONYMS)).tolist(), SYNONYMS.items(), strict=True)
            words = {notion: synonyms[int(draw * len(synonyms))] for draw, (notion, synonyms) in draws}
            captions.append(Caption(*render(template, statement, words), statement, template, words, graph))
        if len(captions) == CAPTIONS_PER_IMAGE:
            break
    return captions


def render(template: str, statement: Statement, words: dict[str, str]) -> tuple[str, scene_graphs.CaptionGraph]:
    """Renders a statement in English.

    Args:
      template: One of `TEMPLATES`, with slots for the statement.
      statement: The phrases in the order of the slots a, b, c, g of the template.
      words: The synonym to use for each key of `SYNONYMS`.

    Returns:
      The caption, in lower case with spaces between words and before the final period; and its scene graph, without the
      picture itself.
    """
    slots = SLOTS[template]
    fields = {'picture': words['picture']}
    for slot, phrase in zip(slots, statement.phrases, strict=True):
        fields[slot] = _noun_phrase(phrase, words)
    if statement.total:
        fields['total'] = _noun_phrase(Phrase(count=statement.total), words)
    for subject, predicate, target in statement.relations:
        pair = slots[subject] + slots[target]
        fields[pair] = f'{_RELATION}{_preposition(predicate, words)}{_END}'
        fields[f'{pair}_it'] = f'{_RELATION}{PRONOUNS[predicate]}{_END}'
    return _read_marks(_A_BEFORE_VOWEL.sub('an', template.format(**fields)))


def _read_marks(marked: str) -> tuple[str, scene_graphs.CaptionGraph]:
    """Removes the marks from a caption, and returns the marked phrases as a scene graph."""
    text = ''
    marks = {_OBJECT: [], _ATTRIBUTE: [], _RELATION: []}
    described = []
    for kind, part in _MARKED.findall(marked):
        if kind == _ATTRIBUTE:
            described.append((len(marks[_OBJECT]), len(marks[_ATTRIBUTE])))
        if kind:
            marks[kind].append((len(text), len(text) + len(part)))
        text += part
    return text, scene_graphs.CaptionGraph(*map(tuple, marks.values()), tuple(described))


def _sample_statement(
    template: str, graph: SceneGraph, mentions: np.ndarray, rng: np.random.Generator
) -> Statement | None:
    """Samples a true statement for a template and counts the mentions; None if the scene has none."""
    phrases = []
    free = range(len(graph.objects))
    if '{g}' in template:
        groups = find_groups(graph.objects)
        if not groups:
            return None
        group, members = groups[rng.integers(len(groups))]
        phrases = [group]
        free = [i for i in free if i not in members]
    predicates = {(r.subject, r.object): r.predicate for r in graph.relations}
    candidates = list(itertools.permutations(free, len(SLOTS[template]) - len(phrases)))
    related = RELATED[template]
    for subject, target in related:
        candidates = [chosen for chosen in candidates if (chosen[subject], chosen[target]) in predicates]
    if not candidates:
        return None
    chosen = candidates[np.argmin(mentions[np.array(candidates)].sum(1) + rng.random(len(candidates)))]
    mentions[list(chosen)] += 1
    return Statement(
        phrases=(*(_phrase(graph.objects[i], rng) for i in chosen), *phrases),
        relations=tuple(Relation(s, predicates[chosen[s], chosen[o]], o) for s, o in related),
        total=len(graph.objects) if '{total}' in template else None,
    )


def _phrase(thing: Object, rng: np.random.Generator) -> Phrase:
    size_draw, omission_draw = rng.random(2).tolist()
    if omission_draw < _OMIT_COLOUR_PROB:
        return Phrase(size=thing.size, shape=thing.shape)
    if omission_draw < _OMIT_COLOUR_PROB + _OMIT_SHAPE_PROB:
        return Phrase(size=thing.size, colour=thing.colour)
    return Phrase(thing.size if size_draw < _SIZE_PROB else None, thing.colour, thing.shape)


def _noun_phrase(phrase: Phrase, words: dict[str, str]) -> str:
    attributes = [words.get(word, word) for word in (phrase.size, phrase.colour) if word]
    noun = words.get(phrase.shape or 'shape', phrase.shape)
    count = 'a'
    if phrase.count > 1:
        count = f'{_ATTRIBUTE}{NUMERALS[phrase.count]}{_END}'
        noun = plural(noun)
    return ' '.join([count, *(f'{_ATTRIBUTE}{word}{_END}' for word in attributes), f'{_OBJECT}{noun}{_END}'])


def plural(noun: str) -> str:
    """Returns the plural of a noun of the grammar."""
    return noun + ('es' if noun[-1] in 'sx' else 's')


def _preposition(predicate: str, words: dict[str, str]) -> str:
    # Left and right have the same wording, so that a swap of them changes nothing else.
    if predicate in ('left of', 'right of'):
        return words['side'].format(predicate.removesuffix(' of'))
    return words.get(predicate, predicate)


def swaps(caption: Caption) -> tuple[Swap, ...]:
    """Returns the swaps of a caption that are false of its scene, without duplicates."""
    results = {}
    for kind, swapped in exchanges(caption.statement):
        if not holds(swapped, caption.scene):
            text, _ = render(caption.template, swapped, caption.words)
            results.setdefault(text, Swap(kind, text))
    return tuple(results.values())


def exchanges(statement: Statement):
    """Yields (kind, statement) for every exchange of a color, a shape, a direction, or of subject and object."""
    phrases = statement.phrases
    for i, j in itertools.combinations(range(len(phrases)), 2):
        for name in ('colour', 'shape'):
            first = getattr(phrases[i], name)
            second = getattr(phrases[j], name)
            if first and second and first != second:
                exchanged = {i: phrases[i]._replace(**{name: second}), j: phrases[j]._replace(**{name: first})}
                yield 'attribute', statement.changed(exchanged)
    for r, (subject, predicate, target) in enumerate(statement.relations):
        inverted = Relation(subject, INVERSE[predicate], target)
        yield 'relation', statement.changed({}, {r: inverted})
        yield 'relation', statement.changed({subject: phrases[target], target: phrases[subject]})
