"""Similarity matrices, as `jitm eval --save_sims` writes them."""

import collections
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.data.arrays import open_npy
from jitm.data.correspondence import read_image_of_text
from jitm.data.load import load_split
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.saved import IMAGE_OF_TEXT, METRICS, SIMS, read_report
from jitm.files import parse_json
from jitm.metrics import Retrieved, retrieve
from jitm.report.groups import Group, RunLog, saved_file
from jitm.runs.checkpoint_files import checkpoint_digest
from jitm.runs.log import make_line


class Matrix(NamedTuple):
    """Similarities saved by `jitm eval`, or a file of the same format without a report.

    Attributes:
      path: The path of the file.
      sims: [I, T], memory-mapped.
      image_of_text: The image of each text, int [T].
      protocol: The protocol in the `metrics.json` beside it; empty if there is none.
      captions: `Split.captions_hash`; '' if there is no report.
    """

    path: Path
    sims: np.ndarray
    image_of_text: np.ndarray
    protocol: Mapping[str, Any]
    captions: str


def _read_matrix(path: Path) -> Matrix:
    sims = open_npy(str(path))
    if sims.ndim != 2:
        raise UserError(
            f'{path} has shape {sims.shape}, but must be [images, texts], as jitm eval --save_sims writes it'
        )
    image_of_text = read_image_of_text(str(path.with_name(IMAGE_OF_TEXT)), *sims.shape)
    if image_of_text is None:
        raise UserError(
            f'{path} needs {IMAGE_OF_TEXT} beside it, the image of each text, as jitm eval --save_sims writes it'
        )
    if not np.isfinite(sims).all():
        raise UserError(f'{path} has NaN or infinite similarities; write it again with jitm eval --save_sims')
    return Matrix(path=path, sims=sims, image_of_text=image_of_text, **read_report(path, [sims, image_of_text]))


def read_matrices(paths: Sequence[Path]) -> list[Matrix]:
    """Reads the similarities of one split from several files.

    Args:
      paths: The npy files of float16 or float32, each with the image of each text in `image_of_text.npy` beside it.

    Raises:
      UserError: If a file is missing or damaged, does not match the report beside it, or the splits differ.
    """
    matrices = [_read_matrix(path) for path in paths]
    _check_same_data(matrices)
    return matrices


def _check_same_data(matrices: Sequence[Matrix]) -> None:
    """Raises a UserError if matrices have different images or captions."""
    reference = next((matrix for matrix in matrices if matrix.captions), matrices[0])
    for matrix in matrices:
        same_captions = matrix.captions in ('', reference.captions)
        if not same_captions or not np.array_equal(matrix.image_of_text, reference.image_of_text):
            first, second = (f'{m.path} of {m.protocol["data"]}' if m.protocol else m.path for m in (reference, matrix))
            raise UserError(f'{first} and {second} have different images or captions; compare files of the same split')


def names_of(matrices: Sequence[Matrix]) -> list[str]:
    """Returns the names of the run directories of each matrix, or paths if these are not distinct."""
    names = []
    for matrix in matrices:
        runs = matrix.protocol.get('runs', ())
        names.append(' + '.join(Path(run['workdir']).name for run in runs))
    return names if all(names) and len(set(names)) == len(names) else [str(matrix.path) for matrix in matrices]


def load_split_of(matrix: Matrix, data: Mapping[str, Any], split_name: str, data_root: str | None) -> Split:
    """Reads the split of a matrix.

    Args:
      matrix: Similarities of the split, with a report.
      data: The sub-dict `data` of the config of its run.
      split_name: The name of the split, such as 'dev'.
      data_root: The data folder, if it has moved since training.

    Raises:
      UserError: If the data cannot be read, or have other images or captions.
    """
    split = load_split(data, split_name, data_root)
    if split.captions_hash != matrix.captions:
        raise UserError(
            f'{split.name} has other images or captions than {matrix.path}; give the --data_root that jitm eval used'
        )
    return split


def retrieved(matrices: Sequence[Matrix], direction: str, query: int, count: int) -> list[Retrieved]:
    """Returns the best candidates of a query by each matrix; ties count against the query.

    Args:
      matrices: Similarities of one split.
      direction: 'i2t' for the texts of an image, 't2i' for the images of a text.
      query: The index of the image or text.
      count: The number of candidates.
    """
    image_of_text = matrices[0].image_of_text
    images = np.arange(len(matrices[0].sims))
    if direction == 'i2t':
        return [retrieve(np.asarray(matrix.sims[query]), image_of_text == query, count) for matrix in matrices]
    matches = images == image_of_text[query]
    return [retrieve(np.asarray(matrix.sims[:, query]), matches, count) for matrix in matrices]


def saved_sims(run: RunLog, split: str, data_root: str | None = None) -> Path:
    """Returns the file of `jitm eval --save_sims` for a run.

    Args:
      run: The run.
      split: The split, such as 'dev'.
      data_root: The data folder, if it has moved since training; a file from before the move counts too.
    """
    return saved_file(run.workdir, run.config, split, SIMS, data_root)


def read_evaluated(groups: Sequence[Group], split: str, data_root: str | None = None) -> dict[int, list[Matrix]]:
    """Reads the similarities of the groups all of whose runs have saved them.

    Args:
      groups: Groups of runs with validations.
      split: The split, such as 'dev'; '' for the validation split of each run.
      data_root: The data folder, if it has moved since training; see `saved_sims`.

    Returns:
      {index of the group: the similarities of each of its runs}, whose data may differ.

    Raises:
      UserError: If a file is damaged, or does not match the report beside it or the best checkpoint of its run.
    """
    evaluated = {}
    for n, group in enumerate(groups):
        paths = [saved_sims(run, split or run.config['evaluation']['split'], data_root) for run in group.runs]
        if all(path.exists() for path in paths):
            evaluated[n] = [_read_matrix(path) for path in paths]
            for run, matrix in zip(group.runs, evaluated[n], strict=True):
                _check_best(run, matrix.path, matrix.protocol)
    return evaluated


def comparable(evaluated: Mapping[int, Sequence[Matrix]]) -> tuple[dict[int, Sequence[Matrix]], list[Matrix]]:
    """Splits groups into the ones with similarities on the same data, and the others.

    Args:
      evaluated: The similarities of the runs of each group, by index, each with a report.

    Returns:
      The groups on the most common data, the first of ties; and a matrix of each group on other data.
    """
    data = {}
    for n, matrices in evaluated.items():
        data[n] = {matrix.captions for matrix in matrices}
    shared = collections.Counter(itertools.chain(*data.values()))
    usual = max(shared, key=shared.get, default='')
    alike = {n: matrices for n, matrices in evaluated.items() if data[n] == {usual}}
    unlike = []
    for n, matrices in evaluated.items():
        if n not in alike:
            unlike.append(next(matrix for matrix in matrices if matrix.captions != usual))
    return alike, unlike


def evaluated_on(run: RunLog, split: str, data_root: str | None = None) -> RunLog:
    """Returns a run whose only validation is the saved evaluation of its best checkpoint on a split.

    Args:
      run: A run with validations.
      split: The split, such as 'test'.
      data_root: The data folder, if it has moved since training; see `saved_sims`.

    Raises:
      UserError: If there is no such evaluation, or it is of another checkpoint.
    """
    path = saved_file(run.workdir, run.config, split, METRICS, data_root)
    command = f'jitm eval --workdir {run.workdir} --split {split} --save_sims'
    try:
        report = parse_json(path.read_bytes())
        metrics = dict(report['metrics'])
        _check_best(run, path, report['protocol'])
    except FileNotFoundError:
        raise UserError(f'{run.workdir} has no evaluation on {split}; write it with {command}') from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path} is not a report of jitm eval ({error!r}); write it again with {command}') from None
    best = run.best_validation()
    return run._replace(lines=[make_line(best['step'], best['epoch'], best['part'], metrics)])


def _check_best(run: RunLog, path: Path, protocol: Mapping[str, Any]) -> None:
    """Raises a UserError unless a saved evaluation is of the best validation of a single run, as it is now."""
    best = run.best_validation().get('rsum')
    steps = [line['step'] for line in run.validations if line.get('rsum') == best]
    runs = [(entry['step'], entry['member']) for entry in protocol.get('runs', ())]
    if len(runs) != 1 or runs[0] not in [(step, run.config['evaluation']['member']) for step in steps]:
        checkpoints = ' and '.join(f'step {step} of {member}' for step, member in runs) or 'no known checkpoint'
        raise UserError(
            f'{path} is from {checkpoints}, which is not the best validation of {run.workdir}; write it again '
            'with jitm eval --save_sims'
        )
    step = runs[0][0]
    if checkpoint_digest(run.workdir, step) not in ('', protocol['runs'][0].get('digest')):
        raise UserError(
            f'{path} comes from another training of {run.workdir}, whose checkpoint {step} is newer; write '
            'it again with jitm eval --save_sims'
        )
