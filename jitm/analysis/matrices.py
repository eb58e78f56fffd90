"""Saved files of `jitm eval` and their names in reports; similarity matrices as `--save_sims` writes them."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.analysis.settings import RunLog, Setting
from jitm.data import precomp
from jitm.errors import UserError
from jitm.files import parse_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """A saved file of `jitm eval`.

    Attributes:
      path: its path.
      protocol: the protocol in the `metrics.json` beside it; empty if there is none.
    """

    path: Path
    protocol: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix(Saved):
    """Saved similarities.

    Attributes:
      sims: [I, T], memory-mapped; the texts of an image are consecutive, in the order of the images.
    """

    sims: np.ndarray

    @property
    def image_of_text(self) -> np.ndarray:
        """The image of each text, int [T]."""
        images, texts = self.sims.shape
        return np.repeat(np.arange(images), texts // images)


def read_protocol(path: Path) -> dict[str, Any]:
    """Reads the protocol in the `metrics.json` beside a file; empty if there is none.

    Raises:
      UserError: if it is not a report of `jitm eval`.
    """
    report = path.parent / 'metrics.json'
    try:
        return dict(parse_json(report.read_bytes())['protocol']) if report.exists() else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{report} is not a report of jitm eval ({error!r}); write it again, or remove it') from None


def _read_matrix(path: Path) -> Matrix:
    sims = precomp.open_npy(str(path))
    if sims.ndim != 2 or sims.shape[1] % sims.shape[0]:
        raise UserError(
            f'{path} has shape {sims.shape}, but must be [images, texts] with equally many texts for every image, as '
            'jitm eval --save_sims writes it'
        )
    if not np.isfinite(sims).all():
        raise UserError(f'{path} has NaN or infinite similarities; write it again with jitm eval --save_sims')
    return Matrix(path=path, sims=sims, protocol=read_protocol(path))


def read_matrices(paths: Sequence[Path]) -> list[Matrix]:
    """Reads the similarities of one split from several files.

    Args:
      paths: float16 or float32 npy files.

    Raises:
      UserError: if a file is missing or damaged, or their shapes or reports show that the splits differ.
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


def saved_sims(run: RunLog, split: str) -> Path:
    """Returns the file that `jitm eval --save_sims` writes for a run."""
    return run.workdir / 'eval' / split / 'sims.npy'


def read_evaluated(settings: Sequence[Setting], split: str) -> dict[int, list[Matrix]]:
    """Reads the similarities of the settings all of whose runs have saved them.

    Args:
      settings: settings, of runs with validations.
      split: such as 'dev'.

    Returns:
      {index of the setting: the similarities of each of its runs}; all are of the same split.

    Raises:
      UserError: if a file is damaged or older than the best checkpoint of its run, or the splits differ, see
        `read_matrices`.
    """
    runs = {
        n: setting.runs
        for n, setting in enumerate(settings)
        if all(saved_sims(run, split).exists() for run in setting.runs)
    }
    paths = [saved_sims(run, split) for of_setting in runs.values() for run in of_setting]
    matrices = iter(read_matrices(paths) if paths else ())
    evaluated = {n: [next(matrices) for _ in of_setting] for n, of_setting in runs.items()}
    for n, of_setting in evaluated.items():
        for run, matrix in zip(runs[n], of_setting, strict=True):
            _check_best(run, matrix)
    return evaluated


def _check_best(run: RunLog, matrix: Matrix) -> None:
    """Raises a UserError if the report beside a matrix names a step that is not the best validation of its run."""
    best = run.best_validation()['rsum']
    for evaluated in matrix.protocol.get('runs', ()):
        lines = [line for line in run.validations if line['step'] == evaluated['step']]
        if not lines or lines[0]['rsum'] < best:
            raise UserError(
                f'{matrix.path} is of step {evaluated["step"]}, which is not the best validation of {run.workdir}; '
                'write it again with jitm eval --save_sims'
            )


def check_same_data(files: Sequence[Saved]) -> None:
    """Raises a UserError if the reports beside the files name different data."""
    data = {file.protocol['data']: file.path for file in files if file.protocol}
    if len(data) > 1:
        sources = ', '.join(f'{path} of {name}' for name, path in data.items())
        raise UserError(f'the files are of different data: {sources}; compare files of the same split')


def names_of(files: Sequence[Saved]) -> list[str]:
    """Returns a distinct name for each file.

    The names are those of the run directories; with the names of the models if these are not distinct; else paths.
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
