"""Scores of a trained model for features and sentences at hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.protocol import make_scorer
from jitm.runs.run import Run, load_run


def _pad(images: Sequence[np.ndarray]) -> np.ndarray:
    """Puts images' regions, each [R, D], into float32 [I, R, D]."""
    padded = np.zeros((len(images), max(map(len, images)), images[0].shape[1]), np.float32)
    for row, image in zip(padded, images, strict=True):
        row[: len(image)] = image
    return padded


def _check_features(images: Sequence[np.ndarray], feature_size: int) -> None:
    for number, image in enumerate(images):
        if image.ndim != 2 or image.shape[1] != feature_size or not len(image):
            raise UserError(
                f'image {number} has features of shape {list(image.shape)}; the run was trained on '
                f'[regions, {feature_size}]'
            )
        if not np.isfinite(image).all():
            raise UserError(f'image {number} has features that are not finite')


def _check_boxes(boxes: Sequence[np.ndarray], images: Sequence[np.ndarray]) -> None:
    shapes, wanted = [list(one.shape) for one in boxes], [[len(image), 4] for image in images]
    if shapes != wanted:
        raise UserError(f'boxes have the shapes {shapes}; these images need {wanted}')
    if not all(((one >= 0) & (one <= 1)).all() for one in boxes):
        raise UserError('boxes must be x1 y1 x2 y2 as fractions of width and height, in [0, 1]')


def score(
    run: Run | str | Path,
    image: np.ndarray | Sequence[np.ndarray],
    text: str | Sequence[str],
    boxes: np.ndarray | Sequence[np.ndarray] | None = None,
) -> np.ndarray | np.float32:
    """Scores one image or several against one sentence or several.

    Args:
      run: a run directory, or what `load_run` read from one, which saves reading it again.
      image: features [R, F] of one image's regions, or a vector [F]; several: [I, R, F], or a list of [R, F].
      text: a sentence, or a list of sentences.
      boxes: x1 y1 x2 y2 of the regions as fractions of width and height, [R, 4]; of several images like these. For
        models that read where regions are.

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
    _check_features(images, run.feature_size)
    if run.model.reads_locations:
        if boxes is None:
            raise UserError(f'{run.workdir} is of a model that reads where regions are: give their boxes')
        boxes = [np.asarray(one) for one in ([boxes] if one_image else boxes)]
        _check_boxes(boxes, images)
    split = Split(
        'the given images',
        _pad(images),
        np.array(list(map(len, images)), np.int32),
        tuple(texts),
        np.zeros(len(texts), np.int32),
        tuple(map(str, range(len(images)))),
        _pad(boxes) if run.model.reads_locations else None,
    )
    sims = make_scorer(run, split).score()
    return sims[0 if one_image else slice(None), 0 if isinstance(text, str) else slice(None)]
