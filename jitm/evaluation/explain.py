"""The image that a model retrieves for a text, and what the model has to say of both, as JSON and to look at.

Either how words and regions attend to each other, or which words do not fit and what should stand there.
"""

import dataclasses
import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm.analysis import words
from jitm.analysis.attention import draw
from jitm.data.pipeline import take_images
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.discrimination.examples import DECIMALS, describe_words, rounded
from jitm.evaluation.discrimination.reader import WORD_HEADS, PairReader, has_heads, smallest_pair
from jitm.models.matcher import Matcher
from jitm.runs.run import Run
from jitm.types import Images, Texts


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """A text and the best image for it.

    Attributes:
      text: row of the text.
      image: row of the image with the highest score; of equal ones not the true one.
      rank: of the true image, 1 is best.
      score: of the retrieved image.
    """

    text: int
    image: int
    rank: int
    score: float


@functools.partial(jax.jit, static_argnums=0)
def _attention(model: Matcher, variables: chex.ArrayTree, images: Images, texts: Texts) -> dict[str, chex.Array]:
    def attend(model: Matcher) -> dict[str, chex.Array]:
        return model.attention_pairwise(model.encode_image(images), model.encode_text(texts))

    return model.apply(variables, method=attend)


def check(runs: Sequence[Run]) -> None:
    """Raises a UserError unless there is one run, whose model has something to show; computes nothing."""
    if len(runs) > 1:
        raise UserError(f'--explain looks at the pairs of one model, but there are {len(runs)}; give one --workdir')
    run = runs[0]
    if has_heads(run, WORD_HEADS):
        return
    try:
        jax.eval_shape(functools.partial(_attention, run.model), run.variables, *smallest_pair(run))
    except UserError as error:
        raise UserError(
            f'--explain does not apply to {run.workdir}: {error}, nor the heads {" and ".join(WORD_HEADS)}'
        ) from None


def retrieve(sims: np.ndarray, image_of_text: np.ndarray, count: int, folds: int = 1) -> list[Retrieved]:
    """Finds the best image for some texts, spread evenly over the split.

    Args:
      sims: [I, T].
      image_of_text: int [T], the true image of each text.
      count: how many texts; all, if there are fewer.
      folds: consecutive parts of the images, each searched by its own texts.

    Returns:
      `min(count, T)` pairs, by text.
    """
    images, texts = sims.shape
    count, size = min(count, texts), images // folds
    pairs = []
    for text in (np.arange(count) * texts // count).tolist():
        true = int(image_of_text[text])
        start = true // size * size
        scores = np.array(sims[start : start + size, text])
        rank = int(np.sum(scores >= scores[true - start]))
        if rank > 1:
            scores[true - start] = -np.inf
        image = start + int(np.argmax(scores))
        pairs.append(Retrieved(text, image, rank, float(sims[image, text])))
    return pairs


def describe(
    run: Run, split: Split, pairs: Sequence[Retrieved], *, dtype: str | None = None, memory_mb: int | None = None
) -> dict[str, Any]:
    """Tells of each pair what was retrieved, and what the model has to say.

    Args:
      run: whose model has heads for single words, or attention.
      split: the images and texts.
      pairs: of them.
      dtype: see `evaluation.make_scorer`.
      memory_mb: see there.

    Returns:
      A dict for JSON: `data`, `workdir`, `step`, and `pairs`, each with a `verdict` in words. Over a pair's `words`,
      either `mismatch`, the probability that a word does not fit the image, and `corrections`, what should stand
      there; or `attention`, name -> word by region, see `Matcher.attention_block`. `boxes` are those of the image's
      regions, or None.
    """
    ids = [run.vocabulary.encode(split.captions[pair.text]) for pair in pairs]
    if has_heads(run, WORD_HEADS):
        reader = PairReader(run, split, dtype=dtype, memory_mb=memory_mb)
        said = describe_words(reader, np.array([pair.image for pair in pairs]), ids)
    else:
        said = _attend(run, split, pairs, ids)
    described = []
    for pair, more in zip(pairs, said, strict=True):
        regions = int(split.counts[pair.image])
        true = int(split.image_of_text[pair.text])
        described.append(
            {
                'text': pair.text,
                'caption': split.captions[pair.text],
                'image': pair.image,
                'image_id': split.image_ids[pair.image],
                'right': pair.image == true,
                'true_image': true,
                'true_image_id': split.image_ids[true],
                'rank': pair.rank,
                'score': round(pair.score, DECIMALS),
                'verdict': _verdict(split, pair),
                'boxes': None if split.boxes is None else rounded(split.boxes[pair.image, :regions]),
                **more,
            }
        )
    return {'data': split.name, 'workdir': str(run.workdir), 'step': run.step, 'pairs': described}


def _verdict(split: Split, pair: Retrieved) -> str:
    """Says what was retrieved for a text, and whether that is right."""
    true = int(split.image_of_text[pair.text])
    wrong = f'wrong: {split.image_ids[true]} comes at rank {pair.rank}'
    return (
        f'retrieved {split.image_ids[pair.image]}, score {pair.score:.3g}, '
        f'{"the right image" if pair.image == true else wrong}'
    )


def _attend(run: Run, split: Split, pairs: Sequence[Retrieved], ids: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
    longest = max(map(len, ids))
    variables = jax.device_put(run.variables)
    for pair, words_of_pair in zip(pairs, ids, strict=True):
        length, regions = len(words_of_pair), int(split.counts[pair.image])
        texts = Texts(np.pad(words_of_pair, (0, longest - length))[None], np.array([length], np.int32))
        images = take_images(split, np.array([pair.image]), run.model.reads_locations)
        attention = _attention(run.model, variables, images, texts)
        yield {
            'words': [run.vocabulary.words[word] for word in words_of_pair],
            'attention': {name: rounded(weights[0, :length, :regions]) for name, weights in attention.items()},
        }


def write(report: Mapping[str, Any], pixels: np.ndarray | None, folder: Path) -> str:
    """Writes `explain.json`, and to look at `explain.html`, or of attention a picture of each pair, `00.png` and so on.

    Args:
      report: see `describe`.
      pixels: uint8 [I, H, W, 3], or None.
      folder: where to.

    Returns:
      What was written, in a sentence; without matplotlib there are no pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob('*.png'), *folder.glob('explain.html')):  # of more pairs, or another model, maybe
        old.unlink()
    pairs, done = report['pairs'], f'{len(report["pairs"])} pairs explained in {folder}'
    (folder / 'explain.json').write_text(json.dumps(report, ensure_ascii=False) + '\n', encoding='utf-8')
    if 'mismatch' in pairs[0]:
        (folder / 'explain.html').write_text(words.page(report, pixels), encoding='utf-8')
        return done
    if importlib.util.find_spec('matplotlib') is None:
        return f'{done}; for pictures of them, pip install matplotlib'
    digits = max(2, len(str(len(pairs) - 1)))
    for number, pair in enumerate(pairs):
        figure = draw(pair, None if pixels is None else pixels[pair['image']])
        figure.savefig(folder / f'{number:0{digits}}.png')
    return done


def show(report: Mapping[str, Any], colour: bool) -> str:
    """What a terminal can show of a report: words that do not fit and their corrections; '' of attention.

    Args:
      report: see `describe`.
      colour: whether the terminal understands ANSI's colours.
    """
    return '\n'.join(words.lines(pair, colour) for pair in report['pairs'] if 'mismatch' in pair)
