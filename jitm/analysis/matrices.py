"""Similarity matrices as `eval.py --save_sims` writes them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data import precomp
from jitm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Saved similarities.

    Attributes:
      path: where they lie.
      sims: [I, T], memory-mapped; the texts of an image stand together, in the order of the images.
      protocol: how they were made, from the `metrics.json` beside them; empty without one.
    """

    path: Path
    sims: np.ndarray
    protocol: Mapping[str, Any]

    @property
    def image_of_text(self) -> np.ndarray:
        """The image of each text, int [T]."""
        images, texts = self.sims.shape
        return np.repeat(np.arange(images), texts // images)


def _read_matrix(path: Path) -> Matrix:
    sims = precomp.open_npy(str(path))
    if sims.ndim != 2 or sims.shape[1] % sims.shape[0]:
        raise UserError(
            f'{path} has shape {sims.shape}, but must be [images, texts] with equally many texts for every image, as '
            'eval.py --save_sims writes it'
        )
    if not np.isfinite(sims).all():
        raise UserError(f'{path} has NaN or infinite similarities; write it again with eval.py --save_sims')
    report = path.parent / 'metrics.json'
    try:
        protocol = json.loads(report.read_text())['protocol'] if report.exists() else {}
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f'{report} is no report of eval.py ({error!r}); write it again, or remove it') from None
    return Matrix(path, sims, protocol)


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
    data = {matrix.protocol['data']: matrix.path for matrix in matrices if matrix.protocol}
    if len(data) > 1:
        told = ', '.join(f'{path} of {name}' for name, path in data.items())
        raise UserError(f'the matrices are of different data: {told}; compare matrices of the same split')
    return matrices


def matrix_names(matrices: Sequence[Matrix]) -> list[str]:
    """The names of the run directories behind each matrix; all have their paths if that does not tell them apart."""
    runs = [
        ' + '.join(Path(run['workdir']).name for run in matrix.protocol['runs']) if matrix.protocol else ''
        for matrix in matrices
    ]
    return runs if all(runs) and len(set(runs)) == len(runs) else [str(matrix.path) for matrix in matrices]
