"""Evaluates a run, or several as an ensemble: `python eval.py --workdir runs/demo`."""

import functools
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from jitm.commands import cli
from jitm.errors import InterruptedRun, UserError
from jitm.evaluation import explain, published
from jitm.evaluation.protocol import Proposals, check_vectors, evaluate_runs, write_report, write_vectors
from jitm.evaluation.scoring import DTYPES
from jitm.metrics import RECALLS_AT, table
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import load_run, read_split

WORKDIR = flags.DEFINE_multi_string('workdir', None, 'A run directory; several are evaluated as one ensemble.')
SPLIT = flags.DEFINE_string('split', 'dev', 'The split to evaluate on.')
FOLDS = flags.DEFINE_integer('folds', 1, 'Average over so many consecutive parts of the images.', lower_bound=1)
STEP = flags.DEFINE_integer('step', None, 'The checkpoint; the best by validation if not given.')
MEMBER = flags.DEFINE_string('member', None, 'The branch; the one that was validated if not given.')
DATA_ROOT = flags.DEFINE_string('data_root', None, 'The data folder, if it has moved since training.')
PROPOSALS = flags.DEFINE_multi_string('proposals', [], 'A cheap run that proposes what is scored; several as ensemble.')
TOP_M = flags.DEFINE_integer('top_m', None, 'Candidates it proposes for each query.', lower_bound=max(RECALLS_AT))
SAVE_SIMS = flags.DEFINE_boolean('save_sims', False, 'Also write the similarities, float32 [images, texts].')
SAVE_VECTORS = flags.DEFINE_boolean('save_vectors', False, 'Also write the vectors whose products are the scores.')
OUTPUT = flags.DEFINE_string('output', None, 'Folder of metrics.json; by default eval/SPLIT in the first run.')
DTYPE = flags.DEFINE_enum('dtype', None, list(DTYPES), 'Of the encodings that are scored, if not as in validation.')
MEMORY_MB = flags.DEFINE_integer('memory_mb', None, 'MiB for scoring, if not as in the config.', lower_bound=1)
COMPARE = flags.DEFINE_boolean('compare', False, 'Also print the published results on the same test images.')
COMPARE_SYSTEMS = flags.DEFINE_list('compare_systems', [], 'Of these only, such as vse,selhn; implies --compare.')
EXPLAIN = flags.DEFINE_integer(
    'explain', None, 'Also show what so many texts attend to, or what in them is wrong.', lower_bound=1
)
flags.mark_flag_as_required('workdir')


def _load_proposals() -> Proposals | None:
    """What --proposals and --top_m describe.

    Raises:
      UserError: if only one of them is given, or a flag that needs every score.
    """
    if bool(PROPOSALS.value) != bool(TOP_M.value):
        raise UserError('--proposals and --top_m go together; give both')
    if not PROPOSALS.value:
        return None
    for flag in (SAVE_SIMS, EXPLAIN):
        if flag.value:
            raise UserError(f'--{flag.name} needs the score of every pair; leave out --proposals')
    return Proposals([load_run(workdir) for workdir in PROPOSALS.value], TOP_M.value)


def _tell_proposals(protocol: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """Who proposed, how much of all was scored, and what no recall can exceed."""
    lines = [f'proposed by {run["workdir"]}, step {run["step"]}, {run["member"]}' for run in protocol['runs']]
    pairs, of_pairs = protocol['pairs'], protocol['of_pairs']
    share = f'{pairs:,} of {of_pairs:,} pairs scored ({pairs / of_pairs:.1%})'
    lines.append(f'top_m {protocol["top_m"]}: {share}; others {protocol["others"]}')
    found = f'{metrics["i2t/proposed"]:.1f} % of the images and {metrics["t2i/proposed"]:.1f} % of the texts'
    return '\n'.join([*lines, f'a match is among the proposals of {found}'])


def main() -> None:
    """Prints the table and writes the report."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    runs = [load_run(workdir, STEP.value, MEMBER.value) for workdir in WORKDIR.value]
    proposals = _load_proposals()
    if EXPLAIN.value:
        explain.check(runs)
    if SAVE_VECTORS.value:
        check_vectors(runs)
    match = None
    if COMPARE.value or COMPARE_SYSTEMS.value:
        match = functools.partial(published.matching, published.load(), systems=COMPARE_SYSTEMS.value)
    name = SPLIT.value + (f'_{FOLDS.value}folds' if FOLDS.value > 1 else '') + ('_ensemble' if len(runs) > 1 else '')
    name += f'_{MEMBER.value}' if MEMBER.value else ''
    name += f'_top{TOP_M.value}' if proposals else ''
    folder = Path(OUTPUT.value) if OUTPUT.value else Path(WORKDIR.value[0]) / 'eval' / name
    blocks = folder / 'blocks'
    try:
        report, sims = evaluate_runs(
            runs,
            SPLIT.value,
            FOLDS.value,
            DATA_ROOT.value,
            check=match,
            proposals=proposals,
            dtype=DTYPE.value,
            memory_mb=MEMORY_MB.value,
            keep_blocks=blocks,
            report=ProgressPrinter(),
        )
        write_report(report, sims if SAVE_SIMS.value else None, folder)
        if SAVE_VECTORS.value:
            split = read_split(runs, SPLIT.value, DATA_ROOT.value)
            write_vectors(runs, split, folder, dtype=report['protocol']['dtype'], memory_mb=MEMORY_MB.value)
        if EXPLAIN.value:
            split = read_split(runs, SPLIT.value, DATA_ROOT.value)
            pairs = explain.retrieve(sims, split.image_of_text, EXPLAIN.value, FOLDS.value)
            dtype = report['protocol']['dtype']
            explained = explain.describe(runs[0], split, pairs, dtype=dtype, memory_mb=MEMORY_MB.value)
            said = explain.write(explained, split.pixels, folder / 'explain')
    except KeyboardInterrupt:
        raise InterruptedRun(f'stopped; the same command goes on from the scores in {blocks}') from None
    shutil.rmtree(blocks, ignore_errors=True)  # another process may be at it too
    protocol = report['protocol']
    fold = f', mean of {protocol["folds"]} folds' if protocol['folds'] > 1 else ''
    print(f'{protocol["data"]}: {protocol["images"]} images, {protocol["texts"]} texts{fold}; ties {protocol["ties"]}')
    for run in protocol['runs']:
        print(f'{run["workdir"]}, step {run["step"]}, {run["member"]}')
    if proposals:
        print(_tell_proposals(protocol['proposals'], report['metrics']))
    print(table(report['metrics']))
    if match:
        print(f'\n{published.comparison(report, match(protocol))}\n')
    print(f'written to {folder}')
    if EXPLAIN.value:
        print(explain.show(explained, sys.stdout.isatty()) + said)


if __name__ == '__main__':
    cli.run(main)
