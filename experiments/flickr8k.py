"""Trains the runs that docs/results and docs/recipes.md report, and keeps their numbers in docs/flickr8k.jsonl.

    python -m experiments flickr8k                                # lists the groups, their runs, and what these reached
    python -m experiments flickr8k losses boosting --seeds 0 1 2  # trains these groups, one run after the other

The groups, by question (small: with --small):

    losses         which loss trains which pooling: sum, max, SelHN, softmax (Faghri et al., 2018; Li et al., 2023)
    boosting       the gain of an anchor in OSS, OAS and MSS (Diao et al., 2024)
    offline        the gain of mined negatives (Chen et al., 2020)
    recipes        which methods add up
    attention      the same losses with cross-attention
    margins        the part of the gain of RM and AM that a larger margin explains (small)
    clipping       whether the reduction and the clipping of gradients make the plateau of max of hinges (small)
    selection      margins that never close, the anchor as a selector of negatives, and other anchors for RM (small)
    distillation   RM and AM against DR, RKD, DML and DINO, all summed over the queries (small)
    weights        larger weights of DR and RKD (small)
    quintuplets    mined negatives where in-batch ones are easier, lists as short as the data, table 3 (small)
    dropout        MSS where dropout of words separates the target from its anchor (small)
    reductions     whether SelHN on SCAN fails by its mean, its learning rate or its clipping
    batch_sizes    how losses depend on the batch at equal steps, without false negatives of the same image (small)
    queues         past pairs as negatives, and smoothed labels, with softmax (small)
    perturbed      captions with a changed relation as negatives, alone and with mined ones (small)
    photos         random crops and fine-tuning of VSE++ on photos
    normalization  loss and normalization of VSE++ on one crop of each photo and on ten, at two learning rates
    centre_crops   random crops evaluated on the centre crop, as published
    collapse       which networks max of hinges does not train from the first step, and SelHN does (small)
    temperatures   softmax against hard negatives at other temperatures (small)
    methods        losses and scenarios of the papers that no other group has (small)
    sweeps         the sensitivity to epsilon, gamma, alpha and to a weaker anchor (small)
    networks       networks of the papers that no other group has (small)
    subsets        the number of negatives of a query, and an anchor that was trained on half of the data (small)
    nine           every network on nine regions, reported on a split that selects no epoch (small)
    nine_losses    SelHN on cross-attention, and RM and AM on DBL's network, on nine regions (small)
    scaled         losses on networks with an MLP or a graph, from the first step, on scaled features (small)
    full           the recipe with a GRU and 512 dimensions, reported on a split that selects no epoch
    headline       the pairs of README's findings, reported on a split that selects no epoch (small)
    lite_headline  its first pairs, and RVSE++, on cells of EfficientNet-Lite0 and tokens of MiniLM (small)
    scenes         the run that mines negatives of synthetic scenes (small)
    oracle         mined negatives of scenes, as mined and without those that are true (small)
    noise          mismatched captions: losses, RM in OSS, AOQ, RCL, CRCL, NCR, without the moved pairs (small)
    public         losses, OSS and OAS on features that anyone can make from public files (docs/results/how.md; small)
    heads          heads on the cells of two networks, and on the states of a tiny CLIP (docs/pixels.md; small)
    encoders       cells of EfficientNet-Lite0 against others, and MiniLM frozen and fine-tuned (small)

A finished run is skipped, an interrupted one resumes. A run whose row is kept is trained again only if another run
reads it, or with --again, as for the scores that `python -m experiments means` averages. With --jobs N, N runs share
the device. With --small, dual encoders have half the dimensions, and those that average the words read captions as bags
of words, which makes a run several times as fast on a CPU; their rows are kept in docs/flickr8k_small.jsonl.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import ROOT, Row
from experiments import row_hits
from experiments.catalog import (
    EXPERIMENTS,
    GROUPS,
    add_run_flags,
    command,
    directory,
    folder_of,
    in_order,
    read_runs,
    scored,
    size,
    two_stages,
)
from experiments.oracle import rsum_among_false
from jitm.errors import UserError
from jitm.evaluation.saved import METRICS, SIMS
from jitm.files import parse_json
from jitm.pages.tables import mean_and_deviation
from jitm.report.bootstrap import Hits, hits
from jitm.report.groups import read_groups, read_run_log
from jitm.report.matrices import read_matrices, saved_sims
from jitm.report.rows import read_rows, update_rows
from jitm.runs.run import load_run, read_split


def train(name: str, seed: int, folder: Path, small: bool = False) -> None:
    """Trains a run, or resumes it, and saves its scores.

    Raises:
      subprocess.CalledProcessError: If a command fails; its output is in `FOLDER/NAME.log`.
    """
    workdir, first_stage = directory(folder, name, seed), EXPERIMENTS[name].first_stage
    if first_stage and not workdir.exists():
        source = directory(folder, first_stage, seed)
        if two_stages(first_stage):
            for part in ('stage1', 'candidates'):
                shutil.copytree(source / part, workdir / part)
        else:
            shutil.copytree(source, workdir / 'stage1')
    run = str(scored(workdir, name))
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f'{workdir.name}.log', 'a') as log:
        evaluation = ['eval', '--workdir', run, '--save_sims']
        if final := EXPERIMENTS[name].final:
            evaluation += ['--split', final]
        for arguments in (command(name, seed, folder, small), evaluation):
            subprocess.run([sys.executable, '-m', 'jitm', *arguments], cwd=ROOT, stdout=log, stderr=log, check=True)


def pending(names: Iterable[str], seeds: Iterable[int], folder: Path, rows: Path | None) -> list[tuple[str, int]]:
    """Returns the runs without a row in the file, if there is one, by seed, each after those that it reads."""
    done = read_rows(rows) if rows and rows.exists() else {}
    return [
        run
        for seed in seeds
        for run in ((name, seed) for name in in_order(n for n in names if _row(n, seed, folder) not in done))
    ]


def _commit() -> str:
    """Returns the commit that is checked out."""
    process = subprocess.run(
        ['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def _final(workdir: Path, name: str) -> dict[str, Any]:
    """Returns the metrics of the split that is evaluated after training."""
    split = EXPERIMENTS[name].final
    if not split:
        return {}
    folder = workdir / 'eval' / split
    metrics = parse_json((folder / METRICS).read_text())['metrics']
    if EXPERIMENTS[name].data == 'scenes':
        metrics['rsum_among_false'] = rsum_among_false(np.load(folder / SIMS), read_split([load_run(workdir)], split))
    return {split: metrics}


def saved_hits(workdir: Path, name: str) -> Hits:
    """Returns the hits of the scores that `train` saved."""
    split = EXPERIMENTS[name].final or 'dev'
    [matrix] = read_matrices([saved_sims(read_run_log(workdir), split)])
    return hits(matrix)


def _row(name: str, seed: int, folder: Path) -> str:
    return str(scored(directory(folder, name, seed), name))


def listing(seeds: Iterable[int], size: str) -> Iterator[Row]:
    """Yields a row for each experiment of each group, with the seeds that have rows, and the mean of their rsum."""
    runs = read_runs(size)
    for group, named in GROUPS.items():
        for name, experiment in named.items():
            rsums = {seed: runs[name, seed]['metrics']['rsum'] for seed in seeds if (name, seed) in runs}
            kept = {
                'seeds with a row': ' '.join(map(str, rsums)) or 'none',
                'rsum': mean_and_deviation([*rsums.values()], '.1f') if rsums else '',
            }
            yield {'group': group, 'name': name, 'setting': experiment.config} | kept


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'{", ".join(GROUPS)}, or experiments')
    parser.add_argument('--jobs', type=int, default=1, help='runs at once')
    parser.add_argument('--again', action='store_true', help='also the runs that have a row')
    add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Trains the runs of the named groups, or lists all.

    Raises:
      UserError: If a name is unknown, or a run fails; the others are trained.
    """
    folder = folder_of(args)
    rows = ROOT / 'docs' / f'{size(args.small)}.jsonl'
    if not args.names:
        yield from listing(args.seeds, size(args.small))
        return
    if unknown := set(args.names) - GROUPS.keys() - EXPERIMENTS.keys():
        raise UserError(f'{", ".join(sorted(unknown))}: neither a group nor an experiment; the command lists them')
    names = [name for group in args.names for name in GROUPS.get(group, (group,))]
    if args.jobs > 1:
        os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'  # the runs share the memory of the device
    started, writing, commit = {}, threading.Lock(), _commit()

    def train_and_keep(name: str, seed: int) -> Row:
        for required in EXPERIMENTS[name].needs():
            started[required, seed].result()
        start = time.perf_counter()
        train(name, seed, folder, args.small)
        workdir = scored(directory(folder, name, seed), name)
        with writing:
            kept = {'hits': row_hits.encode(saved_hits(workdir, name))}
            update_rows(read_groups([workdir]), rows, {'commit': commit} | _final(workdir, name) | kept)
        return {'name': name, 'seed': seed, 's': time.perf_counter() - start}

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, seed in pending(names, args.seeds, folder, None if args.again else rows):
            started[name, seed] = pool.submit(train_and_keep, name, seed)
        for future in concurrent.futures.as_completed(started.values()):
            if not future.exception():
                yield future.result()
    if failed := [f'{name} seed {seed}' for (name, seed), future in started.items() if future.exception()]:
        raise UserError(f'not finished: {", ".join(failed)}; see their output in {folder}/*.log')
