"""False sentences one by one: which words a model finds wrong, and what it would write instead (TAGS-DC, figure 3)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chex
import numpy as np

from jitm.data.splits import Split
from jitm.data.text import join
from jitm.errors import UserError
from jitm.evaluation.discrimination.reader import WORD_HEADS, PairReader, has_heads
from jitm.runs.run import Run

DECIMALS = 6  # of numbers in JSON


def check_examples(run: Run) -> None:
    """Raises a UserError unless a run's model judges words; computes nothing."""
    if not has_heads(run, WORD_HEADS):
        raise UserError(
            f'--show takes a model with the heads {" and ".join(WORD_HEADS)}, which that of {run.workdir} lacks; '
            'leave it out'
        )


def rounded(array: chex.Array) -> list:
    """Numbers for JSON."""
    return np.asarray(array, np.float64).round(DECIMALS).tolist()


def describe_words(reader: PairReader, images: np.ndarray, ids: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
    """Says of each word of N texts how likely it does not fit image images[n], and what should stand there.

    Yields:
      `words`, `mismatch` and `corrections`, lists as long as the text with both ends.
    """
    names = reader.run.vocabulary.words
    for fits, corrections, row in zip(*reader.judge(images, join(ids)), ids, strict=True):
        yield {
            'words': [names[word] for word in row],
            'mismatch': rounded(1 - fits[: len(row)]),
            'corrections': [names[word] for word in corrections[: len(row)]],
        }


def describe_sentences(
    reader: PairReader, split: Split, texts: np.ndarray, sets: Mapping[str, Sequence[Sequence[str]]], count: int
) -> list[dict[str, Any]]:
    """Describes the first false sentence of some captions, those that have one spread evenly.

    Args:
      reader: of the split's images, with a model that has `WORD_HEADS`.
      split: images and captions.
      texts: int [N], the captions to take.
      sets: as for `report.evaluate`.
      count: how many of each set, if there are so many.

    Returns:
      Dicts for JSON, as `analysis.words` shows them: those of `describe_words` for the false sentence, its `caption`,
      which `changed` words are not the caption's (none, if they are not equally many), and the scores in a `verdict`.
    """
    vocabulary, described = reader.run.vocabulary, []
    for name, sentences in sets.items():
        having = [int(text) for text in texts if sentences[text]]
        number = min(count, len(having))
        chosen = [having[n * len(having) // number] for n in range(number)]
        images = split.image_of_text[chosen]
        captions = [vocabulary.encode(split.captions[text]) for text in chosen]
        false = [vocabulary.encode(sentences[text][0]) for text in chosen]
        scores = reader.score(images, join(captions)), reader.score(images, join(false))
        said = describe_words(reader, images, false)
        for text, own, wrong, own_score, score, more in zip(chosen, captions, false, *scores, said, strict=True):
            image = int(split.image_of_text[text])
            described.append(
                {
                    'set': name,
                    'text': text,
                    'caption': split.captions[text],
                    'image': image,
                    'image_id': split.image_ids[image],
                    'changed': (own != wrong).tolist() if len(own) == len(wrong) else [False] * len(wrong),
                    'verdict': f'{name}, {split.image_ids[image]}, score {score:.3g}, of the caption {own_score:.3g}',
                    **more,
                }
            )
    return described
