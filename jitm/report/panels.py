"""Retrieved candidates of several models for the same queries, side by side (AOQ: Chen et al., 2020, figure 6)."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.load import load_split
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.saved import names_of
from jitm.evaluation.tables import table
from jitm.metrics import Retrieved, retrieve
from jitm.outputs import MARK, OutputFolder, replacing_own
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix
from jitm.report.pictures import png

TOP_TEXTS = 5
TOP_IMAGES = 3


def read_split(matrices: Sequence[Matrix], data_root: str | None) -> Split:
    """Reads the split of some matrices, which the report and the config of the first run name.

    Args:
      matrices: Similarities of one split.
      data_root: The data folder, if it has moved since training.

    Raises:
      UserError: If there is no report or run, or the data cannot be read, or are of other images or captions.
    """
    matrix = next((matrix for matrix in matrices if matrix.protocol), None)
    if matrix is None:
        raise UserError(
            f'{matrices[0].path} has no metrics.json beside it that names its data; give at least one matrix in the '
            'folder where jitm eval --save_sims wrote it'
        )
    run = read_run_log(Path(matrix.protocol['runs'][0]['workdir']))
    return load_split_of(matrix, run.config['data'], matrix.protocol['split'], data_root)


def load_split_of(matrix: Matrix, data: Mapping[str, Any], split_name: str, data_root: str | None) -> Split:
    """Reads the split of a matrix.

    Args:
      matrix: Similarities of the split, with a report.
      data: The sub-dict `data` of the config of its run.
      split_name: The name of the split, such as 'dev'.
      data_root: The data folder, if it has moved since training.

    Raises:
      UserError: If the data cannot be read, or are of other images or captions.
    """
    split = load_split(data, split_name, data_root)
    if split.captions_hash != matrix.captions:
        raise UserError(
            f'{split.name} has other images or captions than {matrix.path}; give the --data_root that jitm eval used'
        )
    return split


def write(matrices: Sequence[Matrix], split: Split, images: Sequence[int], texts: Sequence[int], output: Path) -> None:
    """Writes a Markdown file of the candidates that each matrix retrieves, and their images if the data have pixels.

    Args:
      matrices: Similarities of the split.
      split: Images and texts.
      images: Indices of the images whose best texts are shown.
      texts: Indices of the texts whose best images are shown.
      output: The file; images are written to a folder beside it.

    Raises:
      UserError: If an index is out of range, or the file cannot be written.
    """
    for kind, indices, total in (('image', images, split.num_images), ('text', texts, split.num_texts)):
        for index in indices:
            if not 0 <= index < total:
                raise UserError(f'{split.name} has no {kind} {index}; give indices from 0 to {total - 1}')
    texts_of = {
        image: [retrieve(matrix.sims[image], split.image_of_text == image, TOP_TEXTS) for matrix in matrices]
        for image in images
    }
    all_images = np.arange(split.num_images)
    images_of = {
        text: [
            retrieve(matrix.sims[:, text], all_images == split.image_of_text[text], TOP_IMAGES) for matrix in matrices
        ]
        for text in texts
    }
    if split.pixels is not None:
        folder = OutputFolder(output.parent / f'{output.stem}_images', 'a folder of pictures')
        retrieved = {image for row in images_of.values() for one in row for image in one.top}
        pictures = {f'{image}.png': image for image in sorted(retrieved.union(images))}
        folder.claim(pictures)
        for name, image in pictures.items():
            with folder.replacing(name) as file:
                file.write(png(split.pixels[image]))
        folder.remove(set(folder.names) - pictures.keys())  # those of older panels
    with replacing_own(output) as file:
        file.write(markdown(names_of(matrices), split, texts_of, images_of, f'{output.stem}_images').encode())


def markdown(
    names: Sequence[str],
    split: Split,
    texts_of: Mapping[int, Sequence[Retrieved]],
    images_of: Mapping[int, Sequence[Retrieved]],
    folder: str,
) -> str:
    """Returns the retrieved candidates as Markdown, with a column per matrix; matches are ticked.

    Args:
      names: The names of the matrices.
      split: Images and texts.
      texts_of: Image -> the texts retrieved by each matrix.
      images_of: Text -> the images retrieved by each matrix.
      folder: The folder of the images, relative to the file. Without pixels, an image is shown as its first text.
    """

    def show_text(text: int) -> str:
        return _escape(split.captions[text])

    def show_image(image: int) -> str:
        name = _escape(split.image_ids[image])
        if split.pixels is not None:
            return f'{name}<br>![{name}]({folder}/{image}.png)'
        return f'{name}<br>*{show_text(int(np.argmax(split.image_of_text == image)))}*'

    parts = [f'<!-- {MARK.decode()} -->', f'# Retrieval results on {_escape(split.name)}']
    parts.append(f'## The best {TOP_TEXTS} texts of an image')
    for image, retrieved in texts_of.items():
        parts += [f'Image {image}: {show_image(image)}', _table(names, retrieved, show_text)]
    parts.append(f'## The best {TOP_IMAGES} images of a text')
    for text, retrieved in images_of.items():
        parts += [f'Text {text}: {show_text(text)}', _table(names, retrieved, show_image)]
    return '\n\n'.join(parts) + '\n'


def _table(names: Sequence[str], retrieved: Sequence[Retrieved], show: Callable[[int], str]) -> str:
    """Returns a table with a row per rank, and a last row with the rank of the first match."""
    columns = [
        ['✓ ' * correct + show(candidate) for candidate, correct in zip(one.top, one.correct, strict=True)]
        for one in retrieved
    ]
    rows = [[str(rank), *cells] for rank, cells in enumerate(zip(*columns, strict=True), 1)]
    rows.append(['first match', *(str(one.rank) for one in retrieved)])
    return table(['', *map(_escape, names)], rows)


def _escape(text: str) -> str:
    """Escapes the special characters of Markdown."""
    return re.sub(r'([\\`*_\[\]<>|#~])', r'\\\1', text)
