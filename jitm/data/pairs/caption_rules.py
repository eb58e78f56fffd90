"""Rules that change one noun, number or relation of a caption, by its scene graph (VSE-C: Shi et al., 2018)."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from jitm.data.scene_graphs import CaptionGraph, Span
from jitm.errors import require

NUMBERS = ('one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten', 'eleven', 'twelve')
# Prepositions in one group may be synonyms; a preposition is replaced by members of other groups only.
PREPOSITIONS = (
    ('on', 'onto', 'on top of', 'upon', 'atop', 'over'),
    ('in', 'inside', 'into', 'within', 'inside of'),
    ('above', 'over'),
    ('under', 'below', 'beneath', 'underneath'),
    ('next to', 'beside', 'near', 'by', 'at', 'close to', 'alongside', 'along', 'around'),
    ('behind', 'after'),
    ('in front of', 'before'),
    ('from', 'off', 'out of'),
    ('to', 'toward', 'towards'),
    ('through', 'across'),
    ('between', 'among'),
    ('against',),
    ('with',),
    ('without',),
)
_DETERMINER = re.compile(r'\b(?:an?|the|some|another|his|her|its|their|this|that|these|those)\s+$', re.IGNORECASE)
_LINKS = {'', 'with', 'and', 'or', ','}
_VALUES = {word: value for value, word in enumerate(NUMBERS, 1)} | {'a': 1, 'an': 1}
_NUMBER = re.compile(rf'\b(?:{"|".join(_VALUES)})\b', re.IGNORECASE)


@functools.cache
def singular(noun: str) -> str:
    """Returns the singular of a lower-case noun."""
    inflect = require('textblob.en.inflect', extra='graphs')  # the import takes seconds
    return noun if re.search('(?:us|is|ss)$', noun) else inflect.singularize(noun)


@functools.cache
def plural(noun: str) -> str:
    """Returns the plural of a lower-case noun."""
    inflect = require('textblob.en.inflect', extra='graphs')
    return inflect.pluralize(singular(noun))


def head_of(caption: str, span: Span) -> tuple[int, str]:
    """Returns the start of the last word of a phrase, and the word in lower case."""
    word = caption[slice(*span)].split()[-1]
    return span[1] - len(word), word.lower()


def _replace(caption: str, start: int, stop: int, words: str) -> str:
    """Replaces a span by other words; keeps an initial capital and adapts a preceding `a` or `an`."""
    head = re.sub(r'\b(a)n?(\s+)$', rf'\1{"n" if words[0] in "aeiou" else ""}\2', caption[:start], flags=re.IGNORECASE)
    return head + (words[0].upper() if caption[start].isupper() else words[0]) + words[1:] + caption[stop:]


def replace_nouns(caption: str, graph: CaptionGraph, captions: Sequence[str], nouns: Sequence[str]) -> Iterator[str]:
    """Yields a caption with one noun replaced by every other noun that no caption of the image contains.

    Args:
      caption: A caption.
      graph: Its scene graph.
      captions: All captions of its image.
      nouns: Lower-case nouns that are replaced, and that replace each other if both are singular or both plural.
    """
    mentioned = {*map(singular, re.findall(r'\w+', ' '.join(captions).lower()))}
    replacements = [noun for noun in nouns if singular(noun) not in mentioned]
    known_nouns = set(nouns)
    for span in graph.objects:
        start, head = head_of(caption, span)
        if head in known_nouns:
            for noun in replacements:
                if (singular(noun) == noun) == (singular(head) == head):
                    yield _replace(caption, start, span[1], noun)


def change_numbers(caption: str, graph: CaptionGraph) -> Iterator[str]:
    """Yields a caption with one number, or `a`, before a noun replaced by every other number up to twelve.

    The noun changes between singular and plural; its verb does not, as in the released code.
    """
    for match in _NUMBER.finditer(caption):
        span = min((span for span in graph.objects if span[0] >= match.end()), default=None)
        if span is None or not _only_attributes(caption, graph, match.end(), span[0]):
            continue
        start, head = head_of(caption, span)
        value = _VALUES[match[0].lower()]
        for number in set(_VALUES.values()) - {value}:
            noun = head if 1 not in (value, number) else singular(head) if number == 1 else plural(head)
            yield _replace(caption[:start] + noun + caption[span[1] :], *match.span(), NUMBERS[number - 1])


def _only_attributes(caption: str, graph: CaptionGraph, start: int, stop: int) -> bool:
    """Returns whether a span has only attributes such as `big and black`, none of which is like `group of`."""
    between = [span for span in graph.attributes if start <= span[0] and span[1] <= stop]
    words = list(caption[start:stop])
    for first, last in between:
        words[first - start : last - start] = ' ' * (last - first)
    measures = any(caption[slice(*span)].lower().endswith(' of') for span in between)
    return not measures and set(''.join(words).replace(',', ' ').split()) <= {'and'}


def replace_prepositions(caption: str, graph: CaptionGraph) -> Iterator[str]:
    """Yields a caption with the preposition of one relation replaced by every one of another group."""
    for start, stop in graph.relations:
        for word in re.finditer(r'\S+', caption[start:stop]):
            preposition = caption[start + word.start() : stop].lower()
            synonyms = {*itertools.chain(*(group for group in PREPOSITIONS if preposition in group))}
            if synonyms:
                for replacement in dict.fromkeys(itertools.chain(*PREPOSITIONS)):
                    if replacement not in synonyms:
                        yield _replace(caption, start + word.start(), stop, replacement)
                break


def swap_objects(caption: str, graph: CaptionGraph) -> Iterator[str]:
    """Yields a caption with two noun phrases swapped that are not in one list such as `a hat and a coat`."""
    phrases = sorted(_noun_phrase(caption, graph, thing) for thing in range(len(graph.objects)))
    gaps = [caption[first[1] : second[0]].strip().lower() for first, second in itertools.pairwise(phrases)]
    lists = list(itertools.accumulate((gap not in _LINKS for gap in gaps), initial=0))
    for i, j in itertools.combinations(range(len(phrases)), 2):
        first, second = (caption[slice(*phrases[n])] for n in (i, j))
        if lists[i] != lists[j] and first.lower() != second.lower():
            if phrases[i][0] == 0 and first[0].isupper():
                first = first[0].lower() + first[1:]
                second = second[0].upper() + second[1:]
            between = caption[phrases[i][1] : phrases[j][0]]
            yield caption[: phrases[i][0]] + second + between + first + caption[phrases[j][1] :]


def _noun_phrase(caption: str, graph: CaptionGraph, thing: int) -> Span:
    """Returns the span of an object with its determiner and the attributes before it."""
    start, stop = graph.objects[thing]
    previous = max((end for _, end in graph.objects if end <= start), default=0)
    attributes = [graph.attributes[attribute] for described, attribute in graph.described if described == thing]
    start = min([span[0] for span in attributes if previous <= span[0] < start], default=start)
    determiner = _DETERMINER.search(caption[previous:start])
    if determiner:
        start = previous + determiner.start()
    return start, stop
