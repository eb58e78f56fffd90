"""What several models retrieve for the same queries, side by side (AOQ, figure 6)."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jitm import config as config_lib
from jitm.analysis.matrices import Matrix, names_of
from jitm.analysis.settings import read_run
from jitm.analysis.tables import table
from jitm.data.splits import Split
from jitm.errors import UserError

TOP_TEXTS = 5
TOP_IMAGES = 3


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """The best candidates of a query, the best first, which of them are right, and the rank of the first right one."""

    top: Sequence[int]
    right: Sequence[bool]
    rank: int


def retrieve(scores: np.ndarray, right: np.ndarray, count: int) -> Retrieved:
    """Finds the best candidates of a query; of equal ones the right ones come last.

    Args:
      scores: [C], of all candidates.
      right: bool [C], at least one.
      count: how many to keep.
    """
    order = np.lexsort((right, -scores))
    return Retrieved(order[:count].tolist(), right[order[:count]].tolist(), int(np.argmax(right[order])) + 1)


def read_split(matrices: Sequence[Matrix], data_root: str | None) -> Split:
    """Reads the split that the matrices are of, which the report and the config of the first run behind them name.

    Args:
      matrices: of one split.
      data_root: where the data lie now, if not where the run was trained.

    Raises:
      UserError: if there is no report or run, or the data cannot be read or are of other size.
    """
    protocol = next((matrix.protocol for matrix in matrices if matrix.protocol), None)
    if protocol is None:
        raise UserError(
            f'{matrices[0].path} has no metrics.json beside it that says what data it is of; give at least one matrix '
            'where eval.py --save_sims wrote it'
        )
    run = read_run(Path(protocol['runs'][0]['workdir']))
    split = config_lib.load_split(run.config['data'], protocol['split'], data_root)
    if (split.num_images, split.num_texts) != matrices[0].sims.shape:
        raise UserError(
            f'{split.name} has {split.num_images} images and {split.num_texts} texts, but {matrices[0].path} shape '
            f'{matrices[0].sims.shape}; give the --data_root that eval.py read'
        )
    return split


def spread(count: int, total: int) -> list[int]:
    """`count` indices below `total`, spread evenly; all, if there are fewer.

    Raises:
      UserError: if the count is negative.
    """
    if count < 0:
        raise UserError(f'--queries is {count}; give 0 or more')
    count = min(count, total)
    return [n * total // count for n in range(count)]


def write(matrices: Sequence[Matrix], split: Split, images: Sequence[int], texts: Sequence[int], output: Path) -> None:
    """Writes a Markdown file of what each matrix retrieves, and the pictures in it if the data have pixels.

    Args:
      matrices: of the split.
      split: the images and texts.
      images: indices of the images whose best texts are shown.
      texts: indices of the texts whose best images are shown.
      output: the file; pictures lie in a folder beside it.

    Raises:
      UserError: if an index is not in the split, or the file cannot be written.
    """
    for kind, indices, total in (('image', images, split.num_images), ('text', texts, split.num_texts)):
        for index in indices:
            if not 0 <= index < total:
                raise UserError(f'{split.name} has no {kind} {index}; give indices from 0 to {total - 1}')
    texts_of = {
        image: [retrieve(matrix.sims[image], split.image_of_text == image, TOP_TEXTS) for matrix in matrices]
        for image in images
    }
    every_image = np.arange(split.num_images)
    images_of = {
        text: [
            retrieve(matrix.sims[:, text], every_image == split.image_of_text[text], TOP_IMAGES) for matrix in matrices
        ]
        for text in texts
    }
    folder = output.parent / f'{output.stem}_images'
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(markdown(names_of(matrices), split, texts_of, images_of, folder.name), encoding='utf-8')
        if split.pixels is not None:
            retrieved = {image for row in images_of.values() for one in row for image in one.top}
            _write_pictures(split.pixels, retrieved.union(images), folder)
    except OSError as error:
        raise UserError(f'{output} cannot be written ({error}); choose another --output') from None


def _write_pictures(pixels: np.ndarray, images: set[int], folder: Path) -> None:
    from matplotlib.image import imsave

    folder.mkdir(exist_ok=True)
    for image in images:
        imsave(folder / f'{image}.png', pixels[image])


def markdown(
    names: Sequence[str],
    split: Split,
    texts_of: Mapping[int, Sequence[Retrieved]],
    images_of: Mapping[int, Sequence[Retrieved]],
    folder: str,
) -> str:
    """Tells in Markdown what was retrieved, a column for each matrix; right ones are ticked.

    Args:
      names: of the matrices.
      split: the images and texts.
      texts_of: by image, of each matrix.
      images_of: by text, of each matrix.
      folder: of the pictures, seen from the file. Without pixels, an image's first text stands for it.
    """

    def show_text(text: int) -> str:
        return _escape(split.captions[text])

    def show_image(image: int) -> str:
        name = _escape(split.image_ids[image])
        if split.pixels is not None:
            return f'{name}<br>![{name}]({folder}/{image}.png)'
        return f'{name}<br>*{show_text(int(np.argmax(split.image_of_text == image)))}*'

    parts = [f'# What is retrieved from {_escape(split.name)}', f'## The best {TOP_TEXTS} texts of an image']
    for image, retrieved in texts_of.items():
        parts += [f'Image {image}: {show_image(image)}', _table(names, retrieved, show_text)]
    parts.append(f'## The best {TOP_IMAGES} images of a text')
    for text, retrieved in images_of.items():
        parts += [f'Text {text}: {show_text(text)}', _table(names, retrieved, show_image)]
    return '\n\n'.join(parts) + '\n'


def _table(names: Sequence[str], retrieved: Sequence[Retrieved], show: Callable[[int], str]) -> str:
    """A row for each place, and one for where the first right candidate stands."""
    columns = [
        ['✓ ' * right + show(candidate) for candidate, right in zip(one.top, one.right, strict=True)]
        for one in retrieved
    ]
    rows = [[str(place), *cells] for place, cells in enumerate(zip(*columns, strict=True), 1)]
    rows.append(['first right', *(str(one.rank) for one in retrieved)])
    return table(['', *map(_escape, names)], rows)


def _escape(text: str) -> str:
    """Keeps Markdown from reading the text as markup."""
    return re.sub(r'([\\`*_\[\]<>|#~])', r'\\\1', text)
