"""The image that a model retrieves for a text, and how words and regions attend to each other, as JSON and pictures."""

import dataclasses
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm.analysis.attention import draw
from jitm.data.pipeline import take_images
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import Run
from jitm.matcher import Matcher
from jitm.types import Images, Texts

DECIMALS = 6  # of numbers in the JSON


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
    """Raises a UserError unless there is one run, whose model has attention to show; computes nothing."""
    if len(runs) > 1:
        raise UserError(f'--explain shows the attention of one model, but there are {len(runs)}; give one --workdir')
    run = runs[0]
    images = Images(
        np.zeros((1, 1, run.feature_size), np.float32), np.ones(1, np.int32), locations=np.zeros((1, 1, 7), np.float32)
    )
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    try:
        jax.eval_shape(functools.partial(_attention, run.model), run.variables, images, texts)
    except UserError as error:
        raise UserError(f'--explain does not apply to {run.workdir}: {error}') from None


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


def describe(run: Run, split: Split, pairs: Sequence[Retrieved]) -> dict[str, Any]:
    """Tells of each pair what was retrieved, and its attention.

    Args:
      run: whose model has attention.
      split: the images and texts.
      pairs: of them.

    Returns:
      A dict for JSON: `data`, `workdir`, `step`, and `pairs`. A pair's `attention` is name -> word by region, over
      `words` and the image's regions, see `Matcher.attention_block`; its `boxes` are those of the regions, or None.
    """
    ids = [run.vocabulary.encode(split.captions[pair.text]) for pair in pairs]
    longest = max(map(len, ids))
    variables = jax.device_put(run.variables)
    described = []
    for pair, words in zip(pairs, ids, strict=True):
        texts = Texts(np.pad(words, (0, longest - len(words)))[None], np.array([len(words)], np.int32))
        images = take_images(split, np.array([pair.image]), run.model.reads_locations)
        attention = _attention(run.model, variables, images, texts)
        regions = int(split.counts[pair.image])
        true = int(split.image_of_text[pair.text])
        described.append(
            {
                'text': pair.text,
                'caption': split.captions[pair.text],
                'words': [run.vocabulary.words[word] for word in words],
                'image': pair.image,
                'image_id': split.image_ids[pair.image],
                'right': pair.image == true,
                'true_image': true,
                'true_image_id': split.image_ids[true],
                'rank': pair.rank,
                'score': round(pair.score, DECIMALS),
                'boxes': None if split.boxes is None else _rounded(split.boxes[pair.image, :regions]),
                'attention': {
                    name: _rounded(weights[0, : len(words), :regions]) for name, weights in attention.items()
                },
            }
        )
    return {'data': split.name, 'workdir': str(run.workdir), 'step': run.step, 'pairs': described}


def _rounded(array: chex.Array) -> list:
    return np.asarray(array, np.float64).round(DECIMALS).tolist()


def write(report: Mapping[str, Any], pixels: np.ndarray | None, folder: Path) -> str:
    """Writes `explain.json` and a picture of each pair, `00.png` and so on.

    Args:
      report: see `describe`.
      pixels: uint8 [I, H, W, 3], or None.
      folder: where to.

    Returns:
      What was written, in a sentence; without matplotlib there are no pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for picture in folder.glob('*.png'):  # of more pairs, maybe
        picture.unlink()
    pairs = report['pairs']
    (folder / 'explain.json').write_text(json.dumps(report, ensure_ascii=False) + '\n', encoding='utf-8')
    if importlib.util.find_spec('matplotlib') is None:
        return f'{len(pairs)} pairs explained in {folder}; for pictures of them, pip install matplotlib'
    digits = max(2, len(str(len(pairs) - 1)))
    for number, pair in enumerate(pairs):
        figure = draw(pair, None if pixels is None else pixels[pair['image']])
        figure.savefig(folder / f'{number:0{digits}}.png')
    return f'{len(pairs)} pairs explained in {folder}'
