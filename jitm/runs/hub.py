"""A trained model as a folder in the layout of the Hugging Face Hub, which `huggingface_hub.upload_folder` publishes.

`model.safetensors` holds the variables with merged adapters, `config.json` the config of the run and
the inputs that it expects, `vocabulary.json` the words, and `README.md` is the model card.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import chex
import numpy as np
import safetensors.numpy
from flax import traverse_util

from jitm import metrics as metrics_lib
from jitm.config.foreign import declared, read_declared, read_json
from jitm.data.text.vocabularies import restore_vocabulary
from jitm.errors import UserError
from jitm.files import hash_file, parse_json, read_bytes
from jitm.files.outputs import OutputFolder

WEIGHTS = 'model.safetensors'
CONFIG = 'config.json'
VOCABULARY = 'vocabulary.json'
CARD = 'README.md'
KIND = 'an exported model'
FORMAT = 1  # version of config.json
_PARTS = ('params', 'batch_stats')


@declared
class Exported:
    """`config.json` of an exported model."""

    remedy = 'export it again; the model of another library is converted with --from'

    model_type: Literal['jitm']
    format: Literal[FORMAT]
    sha256: dict
    config: dict
    data: dict
    vocabulary_hash: str
    step: int
    member: str
    encoded_by: dict | None = None


def write_folder(folder: Path, variables: Mapping[str, chex.ArrayTree], run: Mapping[str, Any], card: str) -> None:
    """Writes a model.

    Args:
      folder: The folder: new, empty, or with an exported model.
      variables: 'params' and 'batch_stats'.
      run: `config`, `vocabulary` and `vocabulary_hash`, `data`, `step` and `member`, as JSON.
      card: The model card.

    Raises:
      UserError: If the folder has files that jitm did not write, or cannot be written.
    """
    output = OutputFolder(folder, KIND)
    output.claim([WEIGHTS, VOCABULARY, CARD, CONFIG])
    flat = traverse_util.flatten_dict({part: variables[part] for part in _PARTS}, sep='.')
    tensors = {name: np.asarray(value, order='C') for name, value in flat.items()}
    described = {name: value for name, value in run.items() if name != 'vocabulary'}
    with output.replacing(WEIGHTS) as file:
        file.write(safetensors.numpy.save(tensors, {'format': 'jitm'}))
    for name, text in ((VOCABULARY, json.dumps(run['vocabulary'])), (CARD, card)):
        with output.replacing(name) as file:
            file.write(text.encode())
    digests = {name: hash_file(folder / name) for name in (WEIGHTS, VOCABULARY)}
    described |= {'model_type': 'jitm', 'format': FORMAT, 'sha256': digests}
    with output.replacing(CONFIG) as file:
        file.write((json.dumps(described, indent=2) + '\n').encode())
    output.remove({*output.names} - {WEIGHTS, VOCABULARY, CARD, CONFIG})


def read_folder(folder: Path) -> tuple[dict[str, chex.ArrayTree], dict[str, Any]]:
    """Reads a model.

    Args:
      folder: A folder that `write_folder` wrote.

    Returns:
      The variables and `run`, as they were passed to `write_folder`.

    Raises:
      UserError: If jitm did not write the folder, or it is damaged.
    """
    run = vars(read_declared(Exported, folder / CONFIG, read_json(folder / CONFIG)))
    try:
        for name in (WEIGHTS, VOCABULARY):
            if hash_file(folder / name) != run['sha256'].get(name):
                raise ValueError(f'{name} differs from its checksum')
        run['vocabulary'] = read_json(folder / VOCABULARY)
        restore_vocabulary(run['vocabulary'])
        tensors = safetensors.numpy.load_file(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(f'{folder} is damaged ({error}): download it again') from error
    trees = traverse_util.unflatten_dict(tensors, sep='.')
    return {part: trees.get(part, {}) for part in _PARTS}, run


def last_report(workdir: Path, step: int, member: str, digest: str) -> dict[str, Any] | None:
    """Returns the latest report of `jitm eval` on a model of a run alone, see `Run`; None without one."""
    for path in sorted((workdir / 'eval').glob('*/metrics.json'), key=lambda path: -path.stat().st_mtime):
        try:
            report = dict(parse_json(read_bytes(path)))
            runs = [(run['step'], run['member'], run['digest']) for run in report['protocol']['runs']]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # written by another version
        if runs == [(step, member, digest)] and 'shortlist' not in report['protocol']:
            return report
    return None


def write_card(inputs: Mapping[str, Any], model: str, report: Mapping[str, Any] | None) -> str:
    """Returns a model card.

    Args:
      inputs: The description of the data that the model expects, from `jitm.runs.run.describe_inputs`.
      model: The name of the model, such as 'scan.SCAN'.
      report: The report of its evaluation, with `protocol` and `metrics`; None if it was not evaluated.
    """
    lines = [
        '---\nlibrary_name: jitm\ntags:\n- image-text-retrieval\n---\n',
        f'# {model}\n',
        'An image-text matching model of jitm, which scores images with captions.\n',
        "```python\nimport jitm\n\nrun = jitm.load('path of this folder')\n```\n",
        '## Inputs\n',
        *(f'- {name}: {value}' for name, value in inputs.items() if value not in (None, '')),
        '\n## Evaluation\n',
    ]
    if report is None:
        return '\n'.join([*lines, 'It was not evaluated.\n'])
    protocol = {name: value for name, value in report['protocol'].items() if name not in ('runs', 'inputs')}
    lines += [f'- {name}: {value}' for name, value in protocol.items()]
    return '\n'.join([*lines, f'\n```\n{metrics_lib.table(report["metrics"])}\n```\n'])
