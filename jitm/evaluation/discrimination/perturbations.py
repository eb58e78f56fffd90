"""Sentences that are nearly right: one noun, number or relation of a caption changed (VSE-C, Shi et al., 2018).

To see whether a model notices. The original needs spaCy, WordNet and a list of concrete words; here scene graphs stand
for the first, and which nouns are interchangeable is judged by the captions of the data set and of the image. Two
words for the same thing that no caption of the image uses can therefore replace one another, unlike in the original.
"""

import collections
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from jitm.data.scene_graphs import SentenceGraph, Span
from jitm.data.splits import Split
from jitm.errors import UserError, did_you_mean

MOST = 400  # sentences that are kept for one caption, as published
MIN_COUNT = 200  # of a noun in the captions, as published
MIN_CONCRETENESS = 0.6  # of a noun if a list is given, as published
NUMBERS = ('one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten', 'eleven', 'twelve')
# Words of a group can say the same; a preposition is replaced by those of the groups that it is not in.
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
    """The singular of a noun in lower case."""
    from textblob.en import inflect  # takes seconds

    return noun if re.search('(?:us|is|ss)$', noun) else inflect.singularize(noun)


@functools.cache
def plural(noun: str) -> str:
    """The plural of a noun in lower case."""
    from textblob.en import inflect

    return inflect.pluralize(singular(noun))


def count_nouns(captions: Sequence[str], graphs: Sequence[SentenceGraph]) -> collections.Counter[str]:
    """Counts the last words of all objects, in lower case, in the captions of a data set."""
    heads = (_head(caption, span)[1] for caption, graph in zip(captions, graphs, strict=True) for span in graph.objects)
    return collections.Counter(head for head in heads if head.isalpha())


def read_concreteness(path: str) -> dict[str, float]:
    """Reads a list of words with a score each, such as VSE-C's `concreteness.txt`.

    Args:
      path: lines of a word, blanks, and a number.

    Returns:
      The score of each word.

    Raises:
      UserError: the file cannot be read or has another line.
    """
    try:
        with open(path, encoding='utf-8') as file:
            lines = [line.rsplit(maxsplit=1) for line in file if line.strip()]
        return {word: float(score) for word, score in lines}
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of a list of words.') from error
    except ValueError:
        raise UserError(f'{path} has a line other than a word and its score: give another list.') from None


def _head(sentence: str, span: Span) -> tuple[int, str]:
    """Where the last word of a phrase begins, and the word in lower case."""
    word = sentence[slice(*span)].split()[-1]
    return span[1] - len(word), word.lower()


def _replace(sentence: str, start: int, stop: int, words: str) -> str:
    """Puts words into a sentence: capital where a capital was first, `a` and `an` before them as they need."""
    before = re.sub(
        r'\b(a)n?(\s+)$', rf'\1{"n" if words[0] in "aeiou" else ""}\2', sentence[:start], flags=re.IGNORECASE
    )
    return before + (words[0].upper() if sentence[start].isupper() else words[0]) + words[1:] + sentence[stop:]


def replace_nouns(sentence: str, graph: SentenceGraph, captions: Sequence[str], nouns: Sequence[str]) -> Iterator[str]:
    """Yields a sentence with one noun replaced by each other one that no caption of the image has.

    Args:
      sentence: a caption.
      graph: its scene graph.
      captions: all of its image.
      nouns: in lower case, those that are replaced, and that replace where both are singular or both plural.
    """
    said = {singular(word) for caption in captions for word in re.findall(r'\w+', caption.lower())}
    others, known = [noun for noun in nouns if singular(noun) not in said], set(nouns)
    for span in graph.objects:
        start, head = _head(sentence, span)
        if head in known:
            for noun in others:
                if (singular(noun) == noun) == (singular(head) == head):
                    yield _replace(sentence, start, span[1], noun)


def change_numbers(sentence: str, graph: SentenceGraph) -> Iterator[str]:
    """Yields a sentence with one number, or `a`, before a noun replaced by each other one up to twelve.

    The noun changes between singular and plural; its verb does not, as in the original.
    """
    for match in _NUMBER.finditer(sentence):
        span = min((span for span in graph.objects if span[0] >= match.end()), default=None)
        if span is None or not _only_attributes(sentence, graph, match.end(), span[0]):
            continue
        start, head = _head(sentence, span)
        value = _VALUES[match[0].lower()]
        for other in set(_VALUES.values()) - {value}:
            noun = head if 1 not in (value, other) else singular(head) if other == 1 else plural(head)
            yield _replace(sentence[:start] + noun + sentence[span[1] :], *match.span(), NUMBERS[other - 1])


def _only_attributes(sentence: str, graph: SentenceGraph, start: int, stop: int) -> bool:
    """Whether there are only attributes between, such as `big and black`, none of which is `group of`."""
    between = [span for span in graph.attributes if start <= span[0] and span[1] <= stop]
    rest = list(sentence[start:stop])
    for first, last in between:
        rest[first - start : last - start] = ' ' * (last - first)
    measures = any(sentence[slice(*span)].lower().endswith(' of') for span in between)
    return not measures and set(''.join(rest).replace(',', ' ').split()) <= {'and'}


def replace_prepositions(sentence: str, graph: SentenceGraph) -> Iterator[str]:
    """Yields a sentence with the preposition of one relation replaced by each that says something else."""
    for start, stop in graph.relations:
        for word in re.finditer(r'\S+', sentence[start:stop]):
            preposition = sentence[start + word.start() : stop].lower()
            same = {other for group in PREPOSITIONS if preposition in group for other in group}
            if same:
                for other in dict.fromkeys(itertools.chain(*PREPOSITIONS)):
                    if other not in same:
                        yield _replace(sentence, start + word.start(), stop, other)
                break


def swap_objects(sentence: str, graph: SentenceGraph) -> Iterator[str]:
    """Yields a sentence with two noun phrases exchanged that are not parts of one list, such as `a hat and a coat`."""
    phrases = sorted(_noun_phrase(sentence, graph, thing) for thing in range(len(graph.objects)))
    gaps = [sentence[first[1] : second[0]].strip().lower() for first, second in itertools.pairwise(phrases)]
    lists = list(itertools.accumulate((gap not in _LINKS for gap in gaps), initial=0))
    for i, j in itertools.combinations(range(len(phrases)), 2):
        first, second = (sentence[slice(*phrases[n])] for n in (i, j))
        if lists[i] != lists[j] and first.lower() != second.lower():
            if phrases[i][0] == 0 and first[0].isupper():
                first, second = first[0].lower() + first[1:], second[0].upper() + second[1:]
            between = sentence[phrases[i][1] : phrases[j][0]]
            yield sentence[: phrases[i][0]] + second + between + first + sentence[phrases[j][1] :]


def _noun_phrase(sentence: str, graph: SentenceGraph, thing: int) -> Span:
    """An object with its determiner and the attributes before it."""
    start, stop = graph.objects[thing]
    before = max((end for _, end in graph.objects if end <= start), default=0)
    own = [graph.attributes[attribute] for other, attribute in graph.described if other == thing]
    start = min([span[0] for span in own if before <= span[0] < start], default=start)
    if determiner := _DETERMINER.search(sentence[before:start]):
        start = before + determiner.start()
    return start, stop


KINDS = ('noun', 'number', 'relation')


def attack(
    split: Split,
    graphs: Sequence[SentenceGraph],
    kind: str,
    *,
    seed: int,
    most: int = MOST,
    min_count: int = MIN_COUNT,
    concreteness: str = '',
) -> tuple[tuple[str, ...], ...]:
    """Makes false sentences of every caption of a split.

    Args:
      split: images and captions.
      graphs: T scene graphs of the captions.
      kind: 'noun', 'number' (VSE-C's numeral), or 'relation' (prepositions and swapped objects).
      seed: of which and in which order, if there are more than `most`.
      most: for one caption.
      min_count: nouns that are rarer in the captions neither are replaced nor replace.
      concreteness: a list of words with scores, of which nouns must be above 0.6; '' to go without.

    Returns:
      For each caption its distinct false sentences, in random order; none is a caption of its image.

    Raises:
      UserError: the kind is unknown, or no two nouns are left.
    """
    if kind not in KINDS:
        raise UserError(f"there is no attack '{kind}'{did_you_mean(kind, KINDS)}")
    nouns = []
    if kind == 'noun':
        scores = read_concreteness(concreteness) if concreteness else {}
        counts = count_nouns(split.captions, graphs)
        nouns = sorted(
            noun
            for noun, count in counts.items()
            if count >= min_count and (not concreteness or scores.get(noun, 0) > MIN_CONCRETENESS)
        )
        if len(nouns) < 2:
            raise UserError(f'{split.name} has {len(nouns)} nouns that occur {min_count} times; lower min_count')
    texts, starts = split.texts_of_image
    attacked = []
    for text, (sentence, graph) in enumerate(zip(split.captions, graphs, strict=True)):
        image = split.image_of_text[text]
        captions = [split.captions[t] for t in texts[starts[image] : starts[image + 1]]]
        if kind == 'noun':
            found = replace_nouns(sentence, graph, captions, nouns)
        elif kind == 'number':
            found = change_numbers(sentence, graph)
        else:
            found = itertools.chain(replace_prepositions(sentence, graph), swap_objects(sentence, graph))
        false = [other for other in dict.fromkeys(found) if other not in captions]
        order = np.random.default_rng([seed, text]).permutation(len(false))[:most]
        attacked.append(tuple(false[n] for n in order))
    return tuple(attacked)


def swaps(split: Split) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The false sentences that a split comes with, `scenes`: kind of exchange -> of each caption.

    Raises:
      UserError: it has none.
    """
    if not hasattr(split, 'swaps'):
        raise UserError(f'{split.name} has no swaps, which only scenes knows; take {", ".join(KINDS)}')
    return {
        kind: tuple(tuple(swap.caption for swap in own if swap.kind == kind) for own in split.swaps)
        for kind in ('attribute', 'relation')
    }
