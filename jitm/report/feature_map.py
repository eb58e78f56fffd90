"""Images and texts as points in a plane (DBL: Diao et al., 2024, figure 5)."""

import dataclasses
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.errors import UserError, require
from jitm.evaluation.saved import Saved, check_same_data, names_of, read_report
from jitm.metrics import evenly_spaced
from jitm.pages.figures import new_figure

METHODS = {'tsne': 't-SNE', 'pca': 'PCA'}
PERPLEXITY = 30.0  # t-SNE; with fewer than 90 points, a third of their number
PANEL_SIZE = 4.5  # inches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors(Saved):
    """Saved vectors whose inner products are scores.

    Attributes:
      images: The vectors of the images, float32 [I, D].
      texts: The vectors of the texts, float32 [T, D].
    """

    images: np.ndarray
    texts: np.ndarray


def _read(path: Path) -> Vectors:
    try:
        with np.load(path) as file:
            arrays = {key: file[key] for key in ('images', 'texts', 'image_of_text')}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f'{path} was not written by jitm eval --save_vectors ({error}); write it again') from None
    images, texts, image_of_text = arrays.values()
    shapes = [array.shape for array in arrays.values()]
    consistent = images.ndim == texts.ndim == 2 and shapes == [
        (len(images), texts.shape[1]),
        texts.shape,
        (len(texts),),
    ]
    if not consistent or not np.isin(np.arange(len(images)), image_of_text).all():
        raise UserError(f'{path} has arrays of shapes {shapes}, which are not consistent; write it again')
    if not (np.isfinite(images).all() and np.isfinite(texts).all()):
        raise UserError(f'{path} has NaN or infinite vectors; write it again with jitm eval --save_vectors')
    return Vectors(path=path, **arrays, **read_report(path, arrays.values()))


def read_vectors(paths: Sequence[Path]) -> list[Vectors]:
    """Reads the vectors of one split from several files.

    Args:
      paths: The npz files, with `images`, `texts` and `image_of_text`.

    Raises:
      UserError: If a file is missing or damaged, does not match the report beside it, or the splits differ.
    """
    files = [_read(path) for path in paths]
    check_same_data(files)
    return files


def project(vectors: np.ndarray, method: str) -> np.ndarray:
    """Projects the directions of vectors into a plane.

    Args:
      vectors: [N, D]; they are normalized first.
      method: 'tsne', which keeps neighbors together, or 'pca', the plane of the greatest variance.

    Returns:
      [N, 2], deterministic.
    """
    PCA = require('sklearn.decomposition', extra='report').PCA
    TSNE = require('sklearn.manifold', extra='report').TSNE
    normalize = require('sklearn.preprocessing', extra='report').normalize
    threadpool_limits = require('threadpoolctl', extra='report').threadpool_limits

    directions = normalize(vectors.astype(np.float64))
    if method == 'pca':
        projection = PCA(2, random_state=0)
    else:
        projection = TSNE(2, perplexity=min(PERPLEXITY, len(vectors) / 3), init='pca', random_state=0)
    with threadpool_limits(1):  # deterministic on any number of cores, and faster for few points
        return projection.fit_transform(directions)


def draw(files: Sequence[Vectors], method: str, pairs: int) -> Any:
    """Returns a matplotlib figure of some images and their texts, with a panel per file and a color per image.

    Args:
      files: Vectors of one split.
      method: The projection, see `project`.
      pairs: Number of images, evenly spaced over the split; all, if there are fewer.

    Raises:
      UserError: If `pairs` is below 2.
    """
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    if pairs < 2:
        raise UserError(f'--pairs is {pairs}; give 2 or more')
    chosen = np.array(evenly_spaced(pairs, len(files[0].images)))
    texts = np.flatnonzero(np.isin(files[0].image_of_text, chosen))
    image_index = np.searchsorted(chosen, files[0].image_of_text[texts])
    colors = mpl.colormaps['hsv'](np.arange(len(chosen)) / len(chosen))

    label = f'{METHODS[method]} of {len(chosen)} images and their {len(texts)} texts'
    figure = new_figure(PANEL_SIZE * len(files), PANEL_SIZE + 0.6, label)
    panels = figure.subplots(1, len(files), squeeze=False)[0]
    for panel, name, file in zip(panels, names_of(files), files, strict=True):
        points = project(np.concatenate([file.images[chosen], file.texts[texts]]), method)
        image_points, text_points = points[: len(chosen)], points[len(chosen) :]
        lines = np.stack([image_points[image_index], text_points], axis=1)
        panel.add_collection(
            mpl.collections.LineCollection(lines, colors=colors[image_index], linewidths=0.5, alpha=0.4)
        )
        panel.scatter(*text_points.T, s=12, c=colors[image_index])
        panel.scatter(*image_points.T, s=60, c=colors, marker='*', edgecolors='black', linewidths=0.6)
        panel.set_title(name, fontsize='medium')
        panel.set(xticks=[], yticks=[])
    marks = [
        Line2D([], [], color='gray', markeredgecolor='black', marker='*', markersize=9, linestyle='', label='image'),
        Line2D([], [], color='gray', marker='o', markersize=4, linestyle='', label='text of the image with this color'),
    ]
    figure.legend(handles=marks, loc='outside upper center', ncols=2, frameon=False)
    return figure
