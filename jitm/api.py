"""The Python interface loads a run, encodes images and captions, compares them, searches and evaluates.

    run = jitm.load('runs/demo')
    data = run.load_data('test')
    images = run.encode_image(data.images)
    captions = run.encode_text(['a red ring above a blue square', *data.captions[:4]])
    scores = run.similarity(images, captions)
    hits = run.search('a red ring above a blue square', images, top_k=5)

Errors that a user can cause are a `UserError` of one sentence.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.data.images.transforms import Photo
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.runs.run import Run, load_run, read_split
from jitm.serving.images import is_list, is_one_image
from jitm.serving.index import Index
from jitm.serving.loaded_run import LoadedRun
from jitm.serving.search import check_count

__all__ = ['Index', 'LoadedRun', 'evaluate', 'load', 'score']


def _loaded(run: LoadedRun | Run | str | Path) -> LoadedRun:
    if isinstance(run, LoadedRun):
        return run
    return LoadedRun(run) if isinstance(run, Run) else load(run)


def load(
    workdir: str | Path, step: int | None = None, member: str | None = None, encoder: str | Path | None = None
) -> LoadedRun:
    """Loads a trained model; its tokenizer and its config are part of the checkpoint.

    Args:
      workdir: The run directory, or a folder of `jitm convert --to safetensors`.
      step: The step of the checkpoint; None for the best on the validation split.
      member: The name of the model in the config's `members`; None for the validated one.
      encoder: The run directory, or the weights, of the network that encoded the features of the run, for photos, or
        the folder of its text encoder, for captions, if it has moved.

    Returns:
      The loaded run.

    Raises:
      UserError: If the run, checkpoint or model does not exist, or is damaged.

    Example:
      >>> run = jitm.load('runs/demo')
      >>> len(run.encode_text(['a red ring', 'a blue square']))
      2
    """
    if not isinstance(workdir, str | Path):
        raise UserError(f'the run has type {type(workdir).__name__}; give a run directory or the result of jitm.load')
    if not isinstance(step, int | np.integer | None) or not isinstance(member, str | None):
        raise UserError(f'step is {step!r} and member is {member!r}; give an integer and a name, or None')
    return LoadedRun(load_run(workdir, step, member), encoder)


def evaluate(
    run: LoadedRun | str | Path | Sequence[LoadedRun | str | Path],
    split: str | Split,
    folds: int = 1,
    data_root: str | None = None,
) -> dict[str, float]:
    """Evaluates a run, or an ensemble of runs, on a split of its data set.

    Args:
      run: A loaded run or a run directory; a list is evaluated as an ensemble, by the mean of the similarities.
      split: The name of the split, such as 'test'; or the result of `LoadedRun.load_data`.
      folds: The number of consecutive parts of the images whose metrics are averaged.
      data_root: The data folder of a split by name, if it has moved since training.

    Returns:
      Metrics in percent, such as 'i2t/recall@1' and 'rsum'.

    Raises:
      UserError: If the run or the data cannot be read, or the folds do not divide the images.

    Example:
      >>> metrics = jitm.evaluate('runs/demo', 'test')
      >>> metrics['rsum'] == sum(metrics[f'{way}/recall@{k}'] for way in ('i2t', 't2i') for k in (1, 5, 10))
      True
    """
    check_count(folds, 'folds')
    runs_or_paths = run if is_list(run) else [run]
    if not len(runs_or_paths):
        raise UserError('there is no run to evaluate; give at least one')
    runs = [_loaded(source).run for source in runs_or_paths]
    if not isinstance(split, str | Split) or (data_root and isinstance(split, Split)):
        raise UserError(f'the split has type {type(split).__name__}; give its name, or the result of load_data alone')
    data = read_split(runs, split, data_root) if isinstance(split, str) else split
    return evaluate_runs(runs, data, folds)[0]['metrics']


def score(
    run: LoadedRun | Run | str | Path,
    image: np.ndarray | Photo | Sequence[np.ndarray | Photo],
    text: str | Sequence[str],
    boxes: np.ndarray | Sequence[np.ndarray] | None = None,
    tags: str | Sequence[str] | None = None,
) -> np.ndarray | np.float32:
    """Scores one image or several with one caption or several; warns of unknown words in a caption.

    Args:
      run: A loaded run, or a run directory, which is loaded at each call.
      image: The features [R, F] of one image's regions, or a vector [F]; several: [I, R, F], or a list of [R, F].
        For models of pixels a photo, see `LoadedRun.encode_image`, or uint8 [H, W, 3]; several: a list, or
        uint8 [I, H, W, 3].
      text: A caption, or a list of captions.
      boxes: The x1 y1 x2 y2 of the regions as fractions of width and height, [R, 4]; for several images a list of
        such arrays. Only for models that read the location of regions.
      tags: The object tags of the image in one string, such as 'dog person'; for several images a list of strings. Only
        for models that read tags.

    Returns:
      float32, higher for better matches: a number, [I], [T] or [I, T], with an axis for each side that has several.

    Raises:
      UserError: If there is no such run, or the features do not have the size of the training features.
    """
    run = _loaded(run)
    one_image = is_one_image(image, run.run)
    one_text = isinstance(text, str)
    images = [image] if one_image else image
    boxes, tags = ([side] if one_image and side is not None else side for side in (boxes, tags))
    sims = run.similarity(run.encode_image(images, boxes, tags), run.encode_text(text))
    run.warn_of_unknown_words(text)
    return sims[0 if one_image else slice(None), 0 if one_text else slice(None)]
