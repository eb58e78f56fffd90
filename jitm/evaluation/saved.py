"""Saved files of `jitm eval`: their folders and their content.

`metrics.json` is written last and has a digest of each file beside it. A file of an older evaluation is therefore never
mistaken for a file of this one.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.files import hash_arrays, parse_json
from jitm.files.outputs import OutputFolder

EVALUATION = 'an evaluation'  # the kind of an output folder
METRICS = 'metrics.json'
SIMS, IMAGE_OF_TEXT, VECTORS = 'sims.npy', 'image_of_text.npy', 'vectors.npz'


WORDS = {  # argument of an evaluation -> its default, and the word for another value in the name of the folder
    'folds': (1, '{}folds'),
    'ensemble': (False, 'ensemble'),
    'member': (None, '{}'),
    'top_m': (None, 'top{}'),
    'add': (False, 'added'),
    'step': (None, 'step{}'),
    'dtype': (None, '{}'),
    'precision': (None, '{}'),
}


def folder_of(
    workdir: Path, split: str | None, *, data_root: str | None = None, files: Sequence[str] = (), **arguments: Any
) -> Path:
    """Returns the default output folder of an evaluation, whose name has the arguments that differ from the defaults.

    Args:
      workdir: The first run directory.
      split: The name of the split, such as 'dev'; None if none is read.
      data_root: The data folder, None for the training data.
      files: Other files that are read.
      **arguments: Some of the keys of `WORDS`.
    """
    words = [split] if split else []
    for name, (default, word) in WORDS.items():
        value = arguments.get(name, default)
        if value not in (default, None, ''):
            words.append(word.format(value))
    for paths in ([data_root] if data_root else [], files):
        if paths:
            resolved = '\n'.join(str(Path(path).resolve()) for path in paths)
            words.append(f'{Path(paths[0]).resolve().name}-{hashlib.sha256(resolved.encode()).hexdigest()[:6]}')
    return workdir / 'eval' / '_'.join(words)


def folders_of(workdir: Path, split: str, evaluation: Mapping[str, Any], data_root: str | None = None) -> list[Path]:
    """Returns the folders that may have the evaluation of a run alone: by their names, or the only one of other data.

    Args:
      workdir: The run directory.
      split: The name of the split, such as 'dev'.
      evaluation: The section `evaluation` of its config.
      data_root: The data folder, None for the training data.
    """
    single = (split, 1, 1, evaluation['dtype'], evaluation['precision'])
    of_other_data = []
    for report in workdir.glob(f'eval/{split}_*-??????/{METRICS}'):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            protocol = parse_json(report.read_bytes())['protocol']
            kind = protocol['split'], protocol['folds'], len(protocol['runs']), protocol['dtype'], protocol['precision']
            if kind == single:
                of_other_data.append(report.parent)
    folders = [folder_of(workdir, split, data_root=root) for root in (data_root, None)]
    return folders + (of_other_data if len(of_other_data) == 1 else [])


def names(sims: bool, vectors: bool) -> list[str]:
    """Returns the files that `write` writes, with similarities and with vectors or without."""
    return [METRICS, *([SIMS, IMAGE_OF_TEXT] if sims else []), *([VECTORS] if vectors else [])]


def write(
    report: Mapping[str, Any],
    split: Split,
    folder: OutputFolder,
    *,
    sims: np.ndarray | None = None,
    vectors: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Writes an evaluation, and removes the similarities and vectors of an older one.

    Args:
      report: `metrics` and `protocol`.
      split: The images and texts.
      folder: The output folder.
      sims: float32 [I, T], written with the image of each text; None to write none.
      vectors: float32 [I, D] and [T, D], written with the image of each text; None to write none.

    Raises:
      UserError: If jitm did not write an existing file, or a file cannot be written.
    """
    files = {}
    written = names(sims is not None, vectors is not None)
    folder.claim(written)
    if sims is not None:
        for name, array in ((SIMS, sims), (IMAGE_OF_TEXT, split.image_of_text)):
            with folder.replacing(name) as file:
                np.save(file, array)
        files[SIMS] = hash_arrays([sims, split.image_of_text])
    if vectors is not None:
        arrays = {'images': vectors[0], 'texts': vectors[1], 'image_of_text': split.image_of_text}
        with folder.replacing(VECTORS) as file:
            np.savez(file, **arrays)
        files[VECTORS] = hash_arrays(arrays.values())
    identity = {**split.identity, 'captions': split.captions_hash}
    folder.write(METRICS, json.dumps({**report, 'identity': identity, 'files': files}, indent=2) + '\n')
    folder.remove({SIMS, IMAGE_OF_TEXT, VECTORS}.difference(written))


def read_report(path: Path, arrays: Iterable[np.ndarray]) -> dict[str, Any]:
    """Reads the entry of a file in the `metrics.json` beside it.

    Args:
      path: The file.
      arrays: Its content, in the order in which it was written.

    Returns:
      `protocol` and `captions`, see `matrices.Matrix`.

    Raises:
      UserError: If `jitm eval` did not write the report, or wrote it for another file.
    """
    report = path.parent / METRICS
    if not report.exists():
        return {'protocol': {}, 'captions': ''}
    try:
        content = parse_json(report.read_bytes())
        protocol = content['protocol']
        captions = content['identity']['captions']
        digest = content['files'].get(path.name)
        _ = protocol['data'], protocol['split'], [run['workdir'] for run in protocol['runs']]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'{report} is not a report of jitm eval ({error!r}); write it again, or remove it') from None
    if digest != hash_arrays(arrays):
        raise UserError(
            f'{path} is not from the evaluation in {report.name} beside it; write both again with jitm eval, or move '
            'the file to a folder without a report'
        )
    return {'protocol': protocol, 'captions': captions}
