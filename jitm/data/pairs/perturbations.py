"""Captions perturbed by rules: one noun, number or relation is changed (VSE-C: Shi et al., 2018).

The released code uses spaCy, WordNet and a list of concrete words. Here the parser is replaced by scene graphs, and the
nouns that may replace each other are found in the captions of the data set and of the image. Unlike in the released
code, synonyms that no caption of the image uses can therefore replace each other.
"""

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jitm.data.scene_graphs import CaptionGraph, Span
from jitm.data.splits import Split
from jitm.errors import UserError, did_you_mean, require
from jitm.files import parse_json, read_text, split_lines

MAX_PER_CAPTION = 400  # perturbed captions kept for one caption, as published
MIN_COUNT = 200  # occurrences of a noun in the captions, as published
MIN_CONCRETENESS = 0.6  # applies to nouns if a list is given, as published
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


def read_concreteness(path: str) -> dict[str, float]:
    """Reads a list of words with concreteness scores, such as VSE-C's `concreteness.txt`.

    Args:
      path: A file with a word, white space and a number on each line.

    Returns:
      The score of each word.

    Raises:
      UserError: If the file cannot be read, or a line has another format.
    """
    scores = {}
    for number, line in enumerate(split_lines(read_text(path, 'give the path of a list of words')), 1):
        try:
            words = line.rsplit(maxsplit=1)
            if words:
                word, score = words
                scores[word] = float(score)
        except ValueError:
            raise UserError(f'{path}, line {number} is not a word and its score: give another list') from None
    return scores


def is_file(kind: str) -> bool:
    """Whether a kind of perturbation is a file, see `read_perturbed`."""
    return kind.endswith('.jsonl')


def reads_graphs(kinds: Iterable[str]) -> bool:
    """Whether some kinds of perturbations read the scene graphs of the captions."""
    return any(kind != SWAP and not is_file(kind) for kind in kinds)


def read_perturbed(path: str, split: Split) -> dict[str, tuple[str, ...]]:
    """Reads perturbed captions, such as `jitm words --save_perturbed` writes.

    Args:
      path: A JSONL file of `{"caption": "a red ring", "perturbed": ["a red box", ...]}`.
      split: The captions.

    Returns:
      Caption -> its perturbed captions.

    Raises:
      UserError: If the file cannot be read, a line has another format, or no caption of the split is in it.
    """
    perturbed = collections.defaultdict(tuple)
    for number, line in enumerate(split_lines(read_text(path, 'give the path of perturbed captions')), 1):
        try:
            row = parse_json(line)
            perturbed[row['caption']] += tuple(map(str.strip, row['perturbed']))
        except (ValueError, TypeError, LookupError):
            raise UserError(
                f'{path}, line {number} is not {{"caption": text, "perturbed": list of texts}}: correct it'
            ) from None
    if perturbed.keys().isdisjoint(split.captions):
        raise UserError(f'{path} has none of the captions of {split.name}: give the file of this split')
    return dict(perturbed)


def _head(caption: str, span: Span) -> tuple[int, str]:
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
        start, head = _head(caption, span)
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
        start, head = _head(caption, span)
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


SWAP = 'swap'  # the kind that `scenes` contains
KINDS = ('noun', 'number', 'relation')
Perturb = Callable[[int], list[str]]  # the row of a caption in its split -> its distinct perturbed captions


def perturber(
    split: Split,
    graphs: Sequence[CaptionGraph] | None,
    kind: str,
    *,
    min_count: int = MIN_COUNT,
    concreteness: str = '',
) -> Perturb:
    """Returns a function that perturbs a caption of a split; none of its results is a caption of the image.

    Args:
      split: Images and captions.
      graphs: T scene graphs of the captions, which 'swap' does not read.
      kind: 'noun', 'number' (VSE-C's numeral), 'relation' (prepositions and swapped objects), 'swap', the swapped
        attributes and relations that `scenes` contains, or a file, see `read_perturbed`.
      min_count: Rarer nouns in the captions are neither replaced nor used as replacements.
      concreteness: A file of words with scores, see `read_concreteness`; only nouns above 0.6 are used. '' for all.

    Raises:
      UserError: If the kind is unknown, or the split lacks two nouns or swaps that it needs.
    """
    if is_file(kind):
        written = read_perturbed(kind, split)
    elif kind == SWAP:
        of_kind = swaps(split).values()
        return lambda text: [*itertools.chain.from_iterable(captions[text] for captions in of_kind)]
    elif kind not in KINDS:
        raise UserError(f"there is no perturbation '{kind}'{did_you_mean(kind, KINDS)}")
    nouns = _frequent_nouns(split, graphs, min_count, concreteness) if kind == 'noun' else []

    def perturb_text(text: int) -> list[str]:
        caption = split.captions[text]
        captions = split.captions_of(split.image_of_text[text])
        if is_file(kind):
            candidates = written.get(caption, ())
        elif kind == 'noun':
            candidates = replace_nouns(caption, graphs[text], captions, nouns)
        elif kind == 'number':
            candidates = change_numbers(caption, graphs[text])
        else:
            candidates = [*replace_prepositions(caption, graphs[text]), *swap_objects(caption, graphs[text])]
        return [candidate for candidate in dict.fromkeys(candidates) if candidate not in captions]

    return perturb_text


def perturb(
    split: Split,
    graphs: Sequence[CaptionGraph],
    kind: str,
    *,
    seed: int,
    max_per_caption: int = MAX_PER_CAPTION,
    **options: Any,
) -> tuple[tuple[str, ...], ...]:
    """Perturbs every caption of a split by rules.

    Args:
      split, graphs, kind, **options: See `perturber`.
      seed: The seed of the selection and order of the perturbed captions.
      max_per_caption: Perturbed captions kept for one caption.

    Returns:
      For each caption its distinct perturbed captions, in random order.
    """
    perturb_text = perturber(split, graphs, kind, **options)
    perturbed = []
    for text in range(split.num_texts):
        negatives = perturb_text(text)
        order = np.random.default_rng([seed, text]).permutation(len(negatives))[:max_per_caption]
        perturbed.append(tuple(negatives[n] for n in order))
    return tuple(perturbed)


def _frequent_nouns(split: Split, graphs: Sequence[CaptionGraph], min_count: int, concreteness: str) -> list[str]:
    """Returns the nouns that may replace each other, see `perturber`; a UserError if there are fewer than two."""
    heads: collections.Counter[str] = collections.Counter()
    for caption, graph in zip(split.captions, graphs, strict=True):
        heads.update(_head(caption, span)[1] for span in graph.objects)
    nouns = {head for head, count in heads.items() if head.isalpha() and count >= min_count}
    if concreteness:
        scores = read_concreteness(concreteness)
        nouns = {noun for noun in nouns if scores.get(noun, 0) > MIN_CONCRETENESS}
    if len(nouns) < 2:
        raise UserError(f'{split.name} has {len(nouns)} nouns that occur {min_count} times; lower min_count')
    return sorted(nouns)


def swaps(split: Split) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Returns kind of swap -> for each caption of a split of `scenes` its captions with swapped words.

    Raises:
      UserError: If the split does not belong to `scenes`.
    """
    if not hasattr(split, 'swaps'):
        raise UserError(f'{split.name} has no swaps, only scenes has them; use {", ".join(KINDS)}')
    captions: dict[str, list[tuple[str, ...]]] = {'attribute': [], 'relation': []}
    for row in split.swaps:
        for kind in captions:
            captions[kind].append(tuple(swap.caption for swap in row if swap.kind == kind))
    return {kind: tuple(swapped) for kind, swapped in captions.items()}
