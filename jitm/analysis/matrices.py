"""Files of `eval.py` and what they are called; similarity matrices as `--save_sims` writes them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data import precomp
from jitm.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """A file of `eval.py`.

    Attributes:
      path: where it lies.
      protocol: how it was made, from the `metrics.json` beside it; empty without one.
    """

    path: Path
    protocol: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix(Saved):
    """Saved similarities.

    Attributes:
      sims: [I, T], memory-mapped; the texts of an image stand together, in the order of the images.
    """

    sims: np.ndarray

    @property
    def image_of_text(self) -> np.ndarray:
        """The image of each text, int [T]."""
        images, texts = self.sims.shape
        return np.repeat(np.arange(images), texts // images)


def read_protocol(path: Path) -> dict[str, Any]:
    """The protocol in the `metrics.json` beside a file; empty without one.

    Raises:
      UserError: if that is no report of `eval.py`.
    """
    report = path.parent / 'metrics.json'
    try:
        return json.loads(report.read_text())['protocol'] if report.exists() else {}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f'{report} is no report of eval.py ({error!r}); write it again, or remove it') from None


def _read_matrix(path: Path) -> Matrix:
    sims = precomp.open_npy(str(path))
    if sims.ndim != 2 or sims.shape[1] % sims.shape[0]:
        raise UserError(
            f'{path} has shape {sims.shape}, but must be [images, texts] with equally many texts for every image, as '
            'eval.py --save_sims writes it'
        )
    if not np.isfinite(sims).all():
        raise UserError(f'{path} has NaN or infinite similarities; write it again with eval.py --save_sims')
    return Matrix(path=path, sims=sims, protocol=read_protocol(path))


def read_matrices(paths: Sequence[Path]) -> list[Matrix]:
    """Reads similarities of the same split.

    Args:
      paths: float16 or float32 npy files.

    Raises:
      UserError: if a file is missing or damaged, or they are not of one split, as far as shapes and reports tell.
    """
    matrices = [_read_matrix(path) for path in paths]
    first = matrices[0]
    for other in matrices[1:]:
        if other.sims.shape != first.sims.shape:
            raise UserError(
                f'{other.path} has shape {other.sims.shape}, but {first.path} {first.sims.shape}; compare matrices of '
                'the same split'
            )
    check_same_data(matrices)
    return matrices


def check_same_data(files: Sequence[Saved]) -> None:
    """Raises a UserError if files are of different data, as far as the reports beside them tell."""
    data = {file.protocol['data']: file.path for file in files if file.protocol}
    if len(data) > 1:
        told = ', '.join(f'{path} of {name}' for name, path in data.items())
        raise UserError(f'the files are of different data: {told}; compare files of the same split')


def names_of(files: Sequence[Saved]) -> list[str]:
    """The names of the run directories behind each file.

    With those of the members if that does not tell the files apart, else all have their paths.
    """

    def names(*keys: str) -> list[str]:
        return [
            ' + '.join(', '.join(Path(run.get(key, '')).name for key in keys) for run in file.protocol['runs'])
            if file.protocol
            else ''
            for file in files
        ]

    for candidates in (names('workdir'), names('workdir', 'member')):
        if all(candidates) and len({*candidates}) == len(candidates):
            return candidates
    return [str(file.path) for file in files]
