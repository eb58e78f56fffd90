"""Captions that are perturbed: by rules, by a file, or by what `scenes` knows (VSE-C: Shi et al., 2018).

The released code uses spaCy, WordNet and a list of concrete words. Here the parser is replaced by scene graphs, and the
nouns that may replace each other are found in the captions of the data set and of the image. Unlike in the released
code, synonyms that no caption of the image uses can therefore replace each other.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitm.data.pairs.caption_rules import change_numbers, head_of, replace_nouns, replace_prepositions, swap_objects
from jitm.data.pairs.kinds import BY_RULES, MAX_PER_CAPTION, MIN_COUNT, SWAP
from jitm.data.scene_graphs import CaptionGraph
from jitm.data.splits import Split
from jitm.errors import UserError, did_you_mean
from jitm.files import parse_json, read_text, split_lines

MIN_CONCRETENESS = 0.6  # applies to nouns if a list is given, as published
Perturb = Callable[[int], list[str]]  # the row of a caption in its split -> its distinct perturbed captions


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
    elif kind not in BY_RULES:
        raise UserError(f"there is no perturbation '{kind}'{did_you_mean(kind, BY_RULES)}")
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
        heads.update(head_of(caption, span)[1] for span in graph.objects)
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
        raise UserError(f'{split.name} has no swaps, only scenes has them; use {", ".join(BY_RULES)}')
    captions: dict[str, list[tuple[str, ...]]] = {'attribute': [], 'relation': []}
    for row in split.swaps:
        for kind in captions:
            captions[kind].append(tuple(swap.caption for swap in row if swap.kind == kind))
    return {kind: tuple(swapped) for kind, swapped in captions.items()}
