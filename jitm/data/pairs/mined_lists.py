"""Mined negatives of a split: lists of texts for each image and of images for each text (Chen et al., 2020)."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.arrays import read_integers
from jitm.data.splits import Split
from jitm.errors import ArgumentError, UserError
from jitm.files import hash_arrays, parse_json, read_bytes
from jitm.files.outputs import OutputFolder
from jitm.types import Count

KIND = 'a set of mined negatives'
MANIFEST = 'manifest.json'
ARRAYS = 'i2t_{}.npy', 't2i_{}.npy', 'scores_i2t_{}.npy', 'scores_t2i_{}.npy'
ROUNDING = 1e-5  # scores summed in another order differ by less
MAX_SAMPLES = 16  # attempts to sample negatives that do not match each other; then the last ones are used


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Lists of negatives, the hardest first, as in the published `i2t_*.npy` and `t2i_*.npy`.

    Attributes:
      i2t: int32 [I, H], texts of other images for each image.
      t2i: int32 [T, H'], other images for each text.
    """

    i2t: np.ndarray
    t2i: np.ndarray

    @property
    def hash(self) -> str:
        """SHA-256 of both lists, as hex."""
        return hash_arrays((self.i2t, self.t2i))


def expected_rank(count: int, batch_size: int) -> float:
    """Returns the expected rank, among all candidates of a query, of the hardest negative in a random batch.

    In Chen et al. (2020, introduction) it is 500,000 / 128 = 4,000. Where h, the number of mined negatives of a query,
    is far below, mined negatives are harder than in-batch negatives.

    Args:
      count: The number of candidates of a query, the negatives of the whole split.
      batch_size: The number of pairs in a batch.
    """
    return count / batch_size


def output_folder(folder: Path, name: str) -> OutputFolder:
    """Returns the folder to which lists of a split are written.

    Raises:
      UserError: If files that jitm did not write are in the way.
    """
    output = OutputFolder(folder, KIND)
    output.check([MANIFEST, *(array.format(name) for array in ARRAYS)])
    return output


def save(
    candidates: Candidates, scores: Mapping[str, np.ndarray], manifest: Mapping[str, Any], name: str, folder: Path
) -> None:
    """Writes `i2t_{name}.npy` and `t2i_{name}.npy`, their scores as `scores_*.npy`, and the manifest."""
    output = output_folder(folder, name)
    # The manifest is removed first and written last, so that it never describes a mixture of old and new lists.
    output.remove([MANIFEST])
    for path, array in zip(ARRAYS, (candidates.i2t, candidates.t2i, scores['i2t'], scores['t2i']), strict=True):
        with output.replacing(path.format(name)) as file:
            np.save(file, array)
    with output.replacing(MANIFEST) as file:
        file.write((json.dumps({**manifest, 'lists': candidates.hash}, indent=2) + '\n').encode())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Reads the manifest that `save` wrote; None if there is none.

    Raises:
      UserError: If it is damaged.
    """
    try:
        manifest = parse_json(read_bytes(folder / MANIFEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get('data'), dict):
        raise UserError(f'{folder / MANIFEST} is damaged; mine again')
    return manifest


def _read_list(folder: Path, pattern: str, rows: int, candidates: int) -> np.ndarray:
    """Reads the negatives of some rows of the training split, numbers of so many candidates."""
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        raise UserError(f'{folder} has {len(paths)} files {pattern}; it must hold one, as `jitm mine` writes it')
    content = 'lists of negatives of this training split'
    return read_integers(str(paths[0]), [(rows, None)], (0, candidates - 1), content)


def load(folder: str | Path, split: Split) -> Candidates:
    """Reads the lists of a split.

    Args:
      folder: A folder written by `jitm mine`, or one with the published files `i2t_*.npy` and `t2i_*.npy`.
      split: The training split.

    Raises:
      UserError: If they are missing or damaged, belong to other data, or contain corresponding pairs.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f'folder {folder} of mined negatives does not exist; make it with `jitm mine`')
    manifest = read_manifest(folder)
    if manifest is not None and manifest['data'] != split.identity:
        raise UserError(f'the negatives in {folder} were mined from other data than {split.name}; mine them again')
    i2t = _read_list(folder, 'i2t_*.npy', split.num_images, split.num_texts)
    t2i = _read_list(folder, 't2i_*.npy', split.num_texts, split.num_images)
    if (split.image_of_text[i2t] == np.arange(split.num_images)[:, None]).any():
        raise UserError(f'{folder} lists texts as negatives of their own images; these lists do not fit {split.name}')
    if (t2i == split.image_of_text[:, None]).any():
        raise UserError(f'{folder} lists images as negatives of their own texts; these lists do not fit {split.name}')
    candidates = Candidates(i2t, t2i)
    if manifest is not None and manifest.get('lists', candidates.hash) != candidates.hash:
        raise UserError(f'the lists in {folder} are not those that were mined; mine again')
    return candidates


@dataclasses.dataclass(frozen=True)
class OfflineNegatives:
    """Samples negatives from lists (Chen et al., 2020, section 3.2).

    Attributes:
      candidates: The lists.
      top_h_texts: The number of texts of an image to sample from; 300 as published.
      top_h_images: The number of images of a text to sample from; 60 as published.
    """

    candidates: Candidates
    top_h_texts: Count
    top_h_images: Count

    def __post_init__(self):
        for key, array in (('top_h_texts', self.candidates.i2t), ('top_h_images', self.candidates.t2i)):
            if not 1 <= getattr(self, key) <= array.shape[1]:
                raise ArgumentError(key, f'is {getattr(self, key)}; the lists hold 1 to {array.shape[1]}')

    def sample(
        self, text_index: np.ndarray, split: Split, rng: np.random.Generator
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Samples negatives for each text of a batch and its image, independently, and again if they correspond.

        Args:
          text_index: int [B], rows of the texts.
          split: The split of these texts.
          rng: The generator of the batch.

        Returns:
          The images and texts, each int [B], of two pairs. The first is a negative image of the text with a negative
          text of the image. The second is the image that this negative text describes with a text that describes this
          negative image.
        """
        shape = len(text_index), MAX_SAMPLES
        ranks = rng.integers(self.top_h_texts, size=shape)
        texts = self.candidates.i2t[split.image_of_text[text_index][:, None], ranks]
        image_ranks = rng.integers(self.top_h_images, size=shape)
        images = self.candidates.t2i[text_index[:, None], image_ranks]
        accepted = split.image_of_text[texts] != images
        accepted[:, -1] = True
        first = np.argmax(accepted, axis=1)
        texts, images = (np.take_along_axis(x, first[:, None], axis=1)[:, 0] for x in (texts, images))
        described = split.sample_texts(images, rng)
        return (images, texts), (split.image_of_text[texts], described)
