"""Retrieved candidates of several models for the same queries, side by side (AOQ: Chen et al., 2020, figure 6)."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.files.outputs import MARK, OutputFolder, replacing_own
from jitm.metrics import Retrieved
from jitm.pages.pictures import png
from jitm.pages.tables import table
from jitm.report.groups import read_run_log
from jitm.report.matrices import Matrix, load_split_of, names_of, retrieved

TOP_TEXTS = 5
TOP_IMAGES = 3


def read_split(matrices: Sequence[Matrix], data_root: str | None) -> Split:
    """Reads the split of some matrices, which the report and the config of the first run name.

    Args:
      matrices: Similarities of one split.
      data_root: The data folder, if it has moved since training.

    Raises:
      UserError: If there is no report or run, or the data cannot be read or have other images or captions.
    """
    matrix = next((matrix for matrix in matrices if matrix.protocol), None)
    if matrix is None:
        raise UserError(
            f'{matrices[0].path} has no metrics.json beside it that names its data; give at least one matrix in the '
            'folder where jitm eval --save_sims wrote it'
        )
    run = read_run_log(Path(matrix.protocol['runs'][0]['workdir']))
    return load_split_of(matrix, run.config['data'], matrix.protocol['split'], data_root)


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
    texts_of = {image: retrieved(matrices, 'i2t', image, TOP_TEXTS) for image in images}
    images_of = {text: retrieved(matrices, 't2i', text, TOP_IMAGES) for text in texts}
    if split.pixels is not None:
        folder = OutputFolder(output.parent / f'{output.stem}_images', 'a folder of pictures')
        shown = set()
        for hits in itertools.chain(*images_of.values()):
            shown.update(hits.top)
        pictures = {f'{image}.png': image for image in sorted(shown.union(images))}
        folder.claim(pictures)
        for name, image in pictures.items():
            with folder.replacing(name) as file:
                file.write(png(split.pixels[image]))
        folder.remove(set(folder.names) - pictures.keys())  # pictures of older panels
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

    captions = [_escape(caption) for caption in split.captions]

    def show_image(image: int) -> str:
        name = _escape(split.image_ids[image])
        if split.pixels is not None:
            return f'{name}<br>![{name}]({folder}/{image}.png)'
        return f'{name}<br>*{captions[np.argmax(split.image_of_text == image)]}*'

    parts = [f'<!-- {MARK.decode()} -->', f'# Retrieval results on {_escape(split.name)}']
    parts.append(f'## The best {TOP_TEXTS} texts of an image')
    for image, columns in texts_of.items():
        parts += [f'Image {image}: {show_image(image)}', _table(names, columns, captions.__getitem__)]
    parts.append(f'## The best {TOP_IMAGES} images of a text')
    for text, columns in images_of.items():
        parts += [f'Text {text}: {captions[text]}', _table(names, columns, show_image)]
    return '\n\n'.join(parts) + '\n'


def _table(names: Sequence[str], retrieved: Sequence[Retrieved], show: Callable[[int], str]) -> str:
    """Returns a table with a row per rank, and a last row with the rank of the first match."""
    rows = []
    for rank in range(len(retrieved[0].top)):
        cells = ['✓ ' * group.correct[rank] + show(group.top[rank]) for group in retrieved]
        rows.append([str(rank + 1), *cells])
    rows.append(['first match', *(str(list_of_group.rank) for list_of_group in retrieved)])
    return table(['', *map(_escape, names)], rows)


def _escape(text: str) -> str:
    """Escapes the special characters of Markdown."""
    return re.sub(r'([\\`*_\[\]<>|#~])', r'\\\1', text)
