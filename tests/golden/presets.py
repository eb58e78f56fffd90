"""The tiny settings that `traces.json` and `batches.json` record, the names of their arrays, and how they are compared.

Names in both files are those of `RENAMED`, so that a field can be renamed in jitm without writing the files anew.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from jitm.training import setup as setup_lib
from jitm.training.sections import complete
from jitm.training.setup import Setup
from tests.golden import steps

NOISE = 'data.noise_rate=0.4'
# See `steps.make_config`. A source of pairs, a way to learn labels and a scenario of members each has one at least.
PRESETS = (
    *('vse:fc,selhn,f30k', 'vsrn:f30k', 'scan:i2t,lse,f30k', 'sgraf:sgr,f30k', 'naaf:f8k', 'gsmn:f8k'),
    *('chan:max,f8k', 'maxsim:both,softmax,f8k', 'heads:maxsim,softmax,f8k'),
    *('vse_infinity:esa,gru,f30k', 'vsepp:order0,f8k', 'dbl:vsepp,sam,alone,f8k', 'dbl:vsepp,cmpm,alone,f8k'),
    *('dbl:vsepp,rm,oss,f8k', 'dbl:vsepp,am,oss3,f8k', 'dbl:vsepp,rs,oas,f8k', 'dbl:baseline,am,mss,f30k'),
    *('dbl:baseline,dml,mutual,f30k', 'vse:mean,softmax_queue,f8k', 'aoq:bfan_equal,adapoffquin,f30k'),
    *('recipe:perturbed,f8k', 'recipe:perturbed_offline,oss,f8k', 'oscar:alone,base,coco', 'oscar:rm,base,coco'),
    *('uniter:pretrain,base,f30k', 'uniter:base,f30k', 'tags:tags_sg,base,f30k', 'tags:tags_dc_single,base,f30k'),
    *(f'noisy:mean,{method},f8k {NOISE}' for method in ('rcl', 'crcl', 'ncr', 'decl', 'ladder')),
    *('clip:softmax,scenes', 'siglip:sigmoid,scenes', 'heads:mean,softmax,f8k', 'heads:scan,max,f30k'),
    'siglip:sigmoid,scenes candidates={"source":"in_chunks","same_image":"ignored","queries":2}',
)
RENAMED = {
    "batch.drawn['mined']": 'batch.offline',
    "batch.drawn['shortlist'][0]": 'batch.extra',
    "batch.drawn['shortlist'][1]": 'batch.extra_index',
    "batch.drawn['sampled'][0]": 'batch.mismatched',
    "batch.drawn['sampled'][1]": 'batch.text_replaced',
    "batch.drawn['perturbed'][0]": 'batch.perturbed',
    "batch.drawn['perturbed'][1]": 'batch.is_perturbed',
    "batch.drawn['masked'][0]": 'batch.masked',
    "batch.drawn['masked'][1]": 'batch.caption_words',
    "batch.drawn['relevance']": 'batch.relevance',
    "state.memory['labels']": 'state.labels',
    "state.memory['queue']": 'state.queue',
}  # part of the name of an array in jitm -> that part in the files


def named(prefix: str, tree: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a tree in its order, each with the name that the files have for it."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = prefix + jax.tree_util.keystr(path)
        for new, recorded in RENAMED.items():
            name = name.replace(new, recorded)
        found.append((name, leaf))
    return found


def digest(*parts: object) -> str:
    """Returns a hash of bytes and of the text of anything else."""
    found = hashlib.sha256()
    for part in parts:
        part = part if isinstance(part, bytes) else str(part).encode()
        found.update(b'%d:' % len(part) + part)
    return found.hexdigest()[:16]


def make_setup(name: str, folder: Path) -> Setup:
    """Makes the parts of a tiny setting, see `steps.make_config`, without the trace of its first step."""
    with mock.patch.object(setup_lib, 'trace'):
        return setup_lib.set_up(complete(steps.make_config(name, folder)), resuming=True)


def read(file: str) -> dict[str, Any]:
    """Reads a file of this folder; nothing from one that is to be written."""
    path = Path(__file__).with_name(file)
    return json.loads(path.read_text()) if path.exists() else {}


def compute(names: Sequence[str], compute_one: Callable[[str, Path], Any]) -> dict[str, Any]:
    """Computes the row of each name, the message of an error for one that fails."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        steps.write_files(Path(folder))
        for name in names:
            try:
                rows[name] = compute_one(name, Path(folder))
            except Exception as error:  # the other rows show how far a change goes
                rows[name] = {'error': f'{type(error).__name__}: {error}'}
            print(f'{name} done', file=sys.stderr, flush=True)
            jax.clear_caches()
    return rows


def differences(recorded: Mapping[str, Any], rows: Mapping[str, Any]) -> list[str]:
    """Returns a line for each row that is not the recorded one, with the parts that differ."""
    lines = []
    for name, row in rows.items():
        old = recorded.get(name, {})
        if 'error' in row:
            lines.append(f'{name}: {row["error"]}')
        elif row != old:
            parts = [part for part in {**old, **row} if old.get(part) != row.get(part)]
            lines.append(f'{name}: {", ".join(parts)}')
    return lines


def main(
    file: str,
    compute_rows: Callable[[Sequence[str]], dict[str, Any]],
    names: Sequence[str],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Writes a file of this folder, or with `--compare` prints what differs from it; all rows, or those named.

    Args:
      file: The name of the file.
      compute_rows: The function `names -> rows`.
      names: The names of all rows.
      versions: The libraries on whose version the rows depend.
    """
    versions = versions or {}
    recorded = read(file)
    parser = argparse.ArgumentParser()
    parser.add_argument('--compare', action='store_true')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    if (options.compare or options.names) and any(
        recorded.get(key, version) != version for key, version in versions.items()
    ):
        sys.exit(f'{file} was written with other versions than {versions}: write all of it anew')
    rows = compute_rows(options.names or names)
    if options.compare:
        lines = differences(recorded, rows)
        print('\n'.join(lines) or f'{len(rows)} rows equal those of {file}')
        sys.exit(bool(lines))
    if failed := differences({}, {name: row for name, row in rows.items() if 'error' in row}):
        sys.exit('\n'.join(failed))
    steps.write(file, {**versions, **(recorded if options.names else {}), **rows})
