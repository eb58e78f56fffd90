"""Images and texts as points of a plane (DBL, figure 5)."""

import dataclasses
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.analysis.figures import save
from jitm.analysis.matrices import Saved, check_same_data, names_of, read_protocol
from jitm.analysis.panels import spread
from jitm.errors import UserError

METHODS = ('tsne', 'pca')
PERPLEXITY = 30.0  # of t-SNE, with fewer points a third of them
PANEL = 4.5  # inches


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors(Saved):
    """Saved vectors whose inner products are scores.

    Attributes:
      images: float32 [I, D].
      texts: float32 [T, D].
      image_of_text: int [T].
    """

    images: np.ndarray
    texts: np.ndarray
    image_of_text: np.ndarray


def _read(path: Path) -> Vectors:
    try:
        with np.load(path) as file:
            arrays = {key: file[key] for key in ('images', 'texts', 'image_of_text')}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f'{path} is no file of eval.py --save_vectors ({error}); write it again') from None
    shapes = [arrays[key].shape for key in ('images', 'texts', 'image_of_text')]
    images, texts, of_text = arrays.values()
    fits = images.ndim == texts.ndim == 2 and images.shape[1] == texts.shape[1] and of_text.shape == texts.shape[:1]
    if not fits or not np.isin(np.arange(len(images)), of_text).all():
        raise UserError(f'{path} has arrays of shapes {shapes}, which do not belong together; write it again')
    if not all(np.isfinite(side).all() for side in (images, texts)):
        raise UserError(f'{path} has NaN or infinite vectors; write it again with eval.py --save_vectors')
    return Vectors(path=path, protocol=read_protocol(path), **arrays)


def read_vectors(paths: Sequence[Path]) -> list[Vectors]:
    """Reads vectors of the same split.

    Args:
      paths: npz files of `images`, `texts` and `image_of_text`.

    Raises:
      UserError: if a file is missing or damaged, or they are not of one split, as far as sizes and reports tell.
    """
    files = [_read(path) for path in paths]
    for other in files[1:]:
        if not np.array_equal(other.image_of_text, files[0].image_of_text):
            raise UserError(f'{other.path} is of other images and texts than {files[0].path}; map one split')
    check_same_data(files)
    return files


def place(vectors: np.ndarray, method: str) -> np.ndarray:
    """Places vectors in a plane by their directions.

    Args:
      vectors: [N, D], whose length does not count.
      method: 'tsne', which keeps neighbours together, or 'pca', the plane of the greatest variance.

    Returns:
      [N, 2], the same for the same vectors.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    vectors = np.asarray(vectors, np.float64)
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if method == 'pca':
        projection = PCA(2, random_state=0)
    else:
        projection = TSNE(2, perplexity=min(PERPLEXITY, len(vectors) / 3), init='pca', random_state=0)
    with threadpool_limits(1):  # the same sums on any number of cores, and faster for so few points
        return projection.fit_transform(directions)


def draw(files: Sequence[Vectors], method: str, pairs: int, output: Path) -> None:
    """Draws some images and their texts, a panel for each file and a colour for each image.

    Args:
      files: of one split.
      method: see `place`.
      pairs: how many images, spread evenly over the split; all, if there are fewer.
      output: the figure.

    Raises:
      UserError: if there are fewer than two images, or the figure cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    if pairs < 2:
        raise UserError(f'--pairs is {pairs}; give 2 or more')
    chosen = np.array(spread(pairs, len(files[0].images)))
    texts = np.flatnonzero(np.isin(files[0].image_of_text, chosen))
    own = np.searchsorted(chosen, files[0].image_of_text[texts])
    colors = mpl.colormaps['hsv'](np.arange(len(chosen)) / len(chosen))

    figure = Figure(figsize=(PANEL * len(files), PANEL + 0.6), dpi=150, layout='constrained')
    panels = figure.subplots(1, len(files), squeeze=False)[0]
    for panel, name, file in zip(panels, names_of(files), files, strict=True):
        points = place(np.concatenate([file.images[chosen], file.texts[texts]]), method)
        of_images, of_texts = points[: len(chosen)], points[len(chosen) :]
        lines = np.stack([of_images[own], of_texts], axis=1)
        panel.add_collection(mpl.collections.LineCollection(lines, colors=colors[own], linewidths=0.5, alpha=0.4))
        panel.scatter(*of_texts.T, s=12, c=colors[own])
        panel.scatter(*of_images.T, s=60, c=colors, marker='*', edgecolors='black', linewidths=0.6)
        panel.set_title(name, fontsize='medium')
        panel.set(xticks=[], yticks=[])
    marks = [
        Line2D([], [], color='gray', markeredgecolor='black', marker='*', markersize=9, linestyle='', label='image'),
        Line2D([], [], color='gray', marker='o', markersize=4, linestyle='', label='text of the image in its colour'),
    ]
    figure.legend(handles=marks, loc='outside upper center', ncols=2, frameon=False)
    label = {'tsne': 't-SNE', 'pca': 'PCA'}[method]
    figure.supxlabel(f'{label} of {len(chosen)} images and their {len(texts)} texts', fontsize='small', color='gray')
    save(figure, output)
