"""Scores of a trained model for features and sentences at hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import Run, load_run, make_scorer


def _stack(images: Sequence[np.ndarray], feature_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pads images' regions to [I, R, F] and counts them."""
    for number, image in enumerate(images):
        if image.ndim != 2 or image.shape[1] != feature_size or not len(image):
            raise UserError(
                f'image {number} has features of shape {list(image.shape)}; the run was trained on '
                f'[regions, {feature_size}]'
            )
        if not np.isfinite(image).all():
            raise UserError(f'image {number} has features that are not finite')
    counts = np.array([len(image) for image in images], np.int32)
    regions = np.zeros((len(images), counts.max(), feature_size), np.float32)
    for padded, image in zip(regions, images, strict=True):
        padded[: len(image)] = image
    return regions, counts


def score(
    run: Run | str | Path, image: np.ndarray | Sequence[np.ndarray], text: str | Sequence[str]
) -> np.ndarray | np.float32:
    """Scores one image or several against one sentence or several.

    Args:
      run: a run directory, or what `load_run` read from one, which saves reading it again.
      image: features [R, F] of one image's regions, or a vector [F]; several: [I, R, F], or a list of [R, F].
      text: a sentence, or a list of sentences.

    Returns:
      float32, higher for better matches: a number, [I], [T] or [I, T], with an axis for each side that has several.

    Raises:
      UserError: if there is no such run, or the features are not what it was trained on.
    """
    run = run if isinstance(run, Run) else load_run(run)
    one_image = getattr(image, 'ndim', 3) < 3
    images = [np.atleast_2d(np.asarray(image))] if one_image else [np.asarray(one) for one in image]
    texts = [text] if isinstance(text, str) else list(text)
    if not images or not texts:
        raise UserError('score needs at least one image and one text')
    regions, counts = _stack(images, run.feature_size)
    ids = tuple(map(str, range(len(images))))
    split = Split('the given images', regions, counts, tuple(texts), np.zeros(len(texts), np.int32), ids)
    sims = make_scorer(run, split).score()
    return sims[0 if one_image else slice(None), 0 if isinstance(text, str) else slice(None)]
