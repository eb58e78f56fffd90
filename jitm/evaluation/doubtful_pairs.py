"""The training pairs with the lowest scores relative to others, to find mismatched captions."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jitm.data.splits import Split, pad_texts, take_images
from jitm.data.text.word_level import Tokens
from jitm.files.outputs import OutputFolder
from jitm.inference.engine import Engine, pad
from jitm.inference.scoring import ScoringOptions, resolve_options
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import Run, read_tokens

KIND = 'an audit'
LINES, PAGE = 'audit.jsonl', 'audit.html'
PAIRS = 128  # group size, as in a training batch


def doubts(
    run: Run,
    split: Split,
    *,
    rounds: int,
    options: ScoringOptions,
    report: Callable[[Progress], None] = ignore,
) -> np.ndarray:
    """Returns the doubt of a model about each pair of a split, higher for likely mismatches.

    The pairs are put into random groups of the size of a batch. The doubt of a pair is the score of its hardest
    negative in the group minus its own score, averaged over both directions and all rounds.

    Args:
      run: A trained model.
      split: The pairs.
      rounds: The number of random groupings of the pairs.
      options: The dtype and the precision.
      report: A function called after each group.

    Returns:
      float64 [T].
    """
    tokens = read_tokens(run, split)
    options = resolve_options(run, options)
    engine = Engine(run.model, run.variables, options.dtype, options.precision)
    doubt = np.zeros(split.num_texts)
    times = np.zeros(split.num_texts)
    start = time.perf_counter()
    groups = list(_groups(split.num_texts, rounds))
    for number, rows in enumerate(groups, 1):
        doubt[rows] += _doubts(_scores(engine, split, tokens, rows), split.image_of_text[rows])
        times[rows] += 1
        report(Progress.since(start, 0, number * PAIRS**2, len(groups) * PAIRS**2))
    return doubt / times


def _groups(count: int, rounds: int) -> Iterator[np.ndarray]:
    """Yields the rows of the groups; the last group of a round is filled up, so that all pairs have negatives."""
    for round_ in range(rounds):
        order = np.random.default_rng([0, round_]).permutation(count)
        size = min(PAIRS, count)
        yield from np.split(order[: count - count % size], count // size)
        if count % size:
            yield order[-size:]


def _scores(engine: Engine, split: Split, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
    """Scores the images of some pairs with their captions: [N, N]."""
    filled = pad(rows, max(len(rows), PAIRS))
    images = take_images(split, split.image_of_text[filled], engine.model.reads, tokens.tags)
    texts = pad_texts(tokens, filled, engine.padded_length(tokens.lengths[filled]))
    encoded = engine.encode_any('encode_image', images), engine.encode_any('encode_text', texts)
    return engine.similarity(*encoded)[: len(rows), : len(rows)]


def _doubts(scores: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Returns the doubt of each pair [N] from the scores [N, N] of a group and the images of its pairs."""
    negatives = images[:, None] != images
    negative_scores = np.where(negatives, scores, -np.inf)
    doubt = (negative_scores.max(axis=1) + negative_scores.max(axis=0)) / 2 - np.diagonal(scores)
    return np.where(negatives.any(axis=1), doubt, 0)


def describe(doubt: np.ndarray, split: Split, count: int) -> list[dict[str, Any]]:
    """Describes the pairs that are doubted most, the most doubtful first.

    Args:
      doubt: float [T], see `doubts`.
      split: The pairs.
      count: The number of pairs.

    Returns:
      For each `text`, its row in the split, `caption`, `image`, `image_id`, `doubt`, and with noise whether it was
      `mixed`.
    """
    pairs = []
    for text in np.argsort(-doubt, kind='stable')[:count]:
        image = int(split.image_of_text[text])
        pair = {'text': int(text), 'caption': split.captions[text], 'image': image, 'image_id': split.image_ids[image]}
        pair['doubt'] = float(doubt[text])
        pairs.append(pair if split.clean is None else pair | {'mixed': bool(~split.clean[text])})
    return pairs


def summarize(pairs: Sequence[dict[str, Any]], split: Split) -> str:
    """Returns a line about the pairs of `describe`; for noisy data, with the number of mixed pairs."""
    line = f'{len(pairs):,} of {split.num_texts:,} pairs of {split.name} are listed'
    if split.clean is None or not pairs:
        return line
    num_found = sum(pair['mixed'] for pair in pairs)
    mixed = int(np.sum(~split.clean))
    return f'{line}; {num_found:,} of them are mixed ({100 * num_found / len(pairs):.1f} %), of {mixed:,} in all'


def write(pairs: Sequence[dict[str, Any]], page: str, folder: OutputFolder) -> None:
    """Writes the pairs as `audit.jsonl`, and their page as `audit.html`."""
    folder.write(LINES, ''.join(json.dumps(pair, ensure_ascii=False) + '\n' for pair in pairs))
    folder.write(PAGE, page)
