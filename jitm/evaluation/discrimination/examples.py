"""Single perturbed captions with the words that a model finds mismatched and its corrections (TAGS-DC, figure 3)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chex
import numpy as np

from jitm.data.splits import Split
from jitm.data.text import join
from jitm.errors import UserError
from jitm.inference.pairs import WORD_HEADS, PairScorer
from jitm.metrics import evenly_spaced
from jitm.models.joint import has_heads
from jitm.runs.run import Run

DECIMALS = 6  # of numbers in JSON


def check_examples(run: Run) -> None:
    """Raises a UserError unless a run's model has `WORD_HEADS`; computes nothing."""
    if not has_heads(run.model, WORD_HEADS):
        raise UserError(
            f'--show takes a model with the heads {" and ".join(WORD_HEADS)}, which that of {run.workdir} lacks; '
            'leave it out'
        )


def rounded(array: chex.Array) -> list:
    """Returns an array as nested lists of rounded numbers, for JSON."""
    return np.asarray(array, np.float64).round(DECIMALS).tolist()


def describe_words(scorer: PairScorer, images: np.ndarray, ids: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
    """Describes the word predictions for N captions.

    Args:
      scorer: A scorer of the images, with a model that has `WORD_HEADS`.
      images: The image of each caption, int [N].
      ids: N captions, with special tokens.

    Yields:
      `words`, `mismatch` (the probability that the word does not match the image) and `corrections`, lists as long as
      the caption with its special tokens.
    """
    names = scorer.run.vocabulary.words
    for match_prob, corrections, row in zip(*scorer.predict_words(images, join(ids)), ids, strict=True):
        yield {
            'words': [names[word] for word in row],
            'mismatch': rounded(1 - match_prob[: len(row)]),
            'corrections': [names[word] for word in corrections[: len(row)]],
        }


def describe_captions(
    scorer: PairScorer, split: Split, texts: np.ndarray, sets: Mapping[str, Sequence[Sequence[str]]], count: int
) -> list[dict[str, Any]]:
    """Describes the first perturbed caption of some captions, evenly spaced over those that have one.

    Args:
      scorer: A scorer of the split's images, with a model that has `WORD_HEADS`.
      split: Images and captions.
      texts: The captions to take, int [N].
      sets: Name of a set -> for each of the T captions its perturbed captions, see `sets.perturbed_captions`.
      count: Examples per set, if there are as many.

    Returns:
      Dicts for JSON, as `jitm.report` shows them: those of `describe_words` for the perturbed caption, the original
      `caption`, which words were `changed` (none, if the numbers of tokens differ), and both scores in a `verdict`.
    """
    vocabulary, described = scorer.run.vocabulary, []
    for name, captions in sets.items():
        available = [int(text) for text in texts if captions[text]]
        chosen = [available[n] for n in evenly_spaced(count, len(available))]
        images = split.image_of_text[chosen]
        originals = [vocabulary.encode(split.captions[text]) for text in chosen]
        perturbed = [vocabulary.encode(captions[text][0]) for text in chosen]
        scores = scorer.score(images, join(originals)), scorer.score(images, join(perturbed))
        rows = zip(chosen, originals, perturbed, *scores, describe_words(scorer, images, perturbed), strict=True)
        for text, original, ids, original_score, score, output in rows:
            image = int(split.image_of_text[text])
            changed = (original != ids).tolist() if len(original) == len(ids) else [False] * len(ids)
            described.append(
                {
                    'set': name,
                    'text': text,
                    'caption': split.captions[text],
                    'image': image,
                    'image_id': split.image_ids[image],
                    'changed': changed,
                    'verdict': f'{name}, {split.image_ids[image]}, score {score:.3g}, caption {original_score:.3g}',
                    **output,
                }
            )
    return described
