"""`jitm eval`, see `usage.eval`."""

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from jitm.commands import loading
from jitm.data.pairs import noise
from jitm.devices import parallel
from jitm.errors import UserError, require
from jitm.evaluation import eccv, explain, published, saved
from jitm.evaluation.protocol import (
    Shortlist,
    check_vectors,
    describe_protocol,
    evaluate_runs,
    vectors_of,
)
from jitm.files import locked
from jitm.metrics import table
from jitm.pages.pictures import pixels_of
from jitm.report import explanations
from jitm.runs.checkpoint_files import unfinished
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import Run, load_run, read_split
from jitm.serving.images import view_of


def _load_shortlist(values: flags.FlagValues, runs: Sequence[Run]) -> Shortlist | None:
    """Returns the runs that select pairs, by default those of --workdir; None without --top_m.

    Raises:
      UserError: If the runs of --workdir have one score only.
    """
    if not values.top_m:
        return None
    for run in [] if values.shortlist else runs:
        if run.model.reranker is run.model:
            raise UserError(f'{run.workdir} has one score of a pair: give the run that selects pairs as --shortlist')
    return Shortlist([load_run(workdir) for workdir in values.shortlist] or runs, values.top_m, values['add'].value)


def _describe_shortlist(protocol: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """Returns the runs of the shortlist, the proportion of pairs that was scored and the upper bound of the recalls."""
    lines = [f'shortlist of {run["workdir"]}, step {run["step"]}, {run["member"]}' for run in protocol['runs']]
    pairs = protocol['pairs']
    total = protocol['total_pairs']
    lines.append(
        f'top_m {protocol["top_m"]}: {pairs:,} of {total:,} pairs scored ({pairs / total:.1%}), '
        f'scores {protocol["scores"]}; others {protocol["others"]}'
    )
    i2t = metrics['i2t/shortlisted']
    t2i = metrics['t2i/shortlisted']
    lines.append(f'the shortlist has a match for {i2t:.1f} % of the images and {t2i:.1f} % of the captions')
    return '\n'.join(lines)


def _describe_inputs(inputs: Mapping[str, Any]) -> str:
    """Returns the inputs that a run expects, see `runs.run.describe_inputs`."""
    sizes = {'regions': inputs['feature_size'], 'pixels': inputs['image_size']}
    units = {'regions': 'features', 'pixels': 'pixels a side'}
    fields = [f'{field} of {sizes[field]} {units[field]}' if sizes.get(field) else field for field in inputs['reads']]
    vocabulary = f'{inputs["vocabulary"]:,} words (vocabulary {inputs["vocabulary_hash"][:8]})'
    data = inputs['trained_on'] or 'data not known'
    data += f' (data {inputs["data_hash"][:8]})' if inputs['data_hash'] else ''
    return f'reads {", ".join(fields)} and {vocabulary}; trained on {data}'


def _print_report(report: Mapping[str, Any]) -> None:
    protocol = report['protocol']
    fold = f', mean of {protocol["folds"]} folds' if protocol['folds'] > 1 else ''
    size = f'{protocol["images"]} images, {protocol["texts"]} captions'
    print(f'{protocol["data"]}: {size}{fold}; ties {protocol["ties"]}')
    for run, inputs in zip(protocol['runs'], protocol['inputs'], strict=True):
        print(f'{run["workdir"]}, step {run["step"]}, {run["member"]}')
        print(f'  {_describe_inputs(inputs)}')
        progress = unfinished(Path(run['workdir']))
        if progress:
            print(f'  not finished: this run is at {progress}')
    if 'shortlist' in protocol:
        print(_describe_shortlist(protocol['shortlist'], report['metrics']))
    print(table(report['metrics']))


def main(values: flags.FlagValues) -> None:
    """Prints the metrics and writes the report."""
    parallel.use_all_cores()
    members = values.member or [None]
    folder = loading.evaluation_folder(values, values.workdir[0], ensemble=len(values.workdir) > 1)
    options = loading.scoring_options(values)
    busy = f'another jitm eval writes to {folder.path}; wait for its end, or give another --output'
    explained = explanation = compared = None
    with interruptible(folder.path), contextlib.ExitStack() as stack:
        # Everything that can be wrong is found before the first score.
        runs = [
            load_run(workdir, values.step, member) for workdir, member in itertools.product(values.workdir, members)
        ]
        shortlist = _load_shortlist(values, runs)
        if values.explain:
            require('jinja2', extra='report')
            text_network = explain.check(runs, values.encoder)
        if values.save_vectors:
            for run in runs:
                check_vectors(run, 'there are no vectors to save; leave out --save_vectors')
        read = [*runs, *(shortlist.runs if shortlist else ())]
        split = read_split(read, values.split, values.data_root)
        photos = loading.photos_of(values, split, runs[0]) if values.explain else None
        picture = functools.partial(pixels_of, split, photos=photos, view=view_of(runs[0]) if photos else None)
        if photos:
            picture(0)
        explained_files = explanations.FILES if values.explain else ()
        folder.check([*saved.names(values.save_sims, values.save_vectors), *explained_files])
        ground_truth = eccv.GroundTruth(split) if values.eccv else None
        if values.compare or values.compare_systems:
            protocol = describe_protocol(runs, split, values.folds, options)
            mixed = ' and '.join(sorted({noise.name(run.config['data']) for run in runs} - {''}))
            compared = published.matching(published.load(), protocol, values.compare_systems, mixed)

        # Evaluates, and resumes from the blocks that are finished.
        stack.enter_context(locked(folder.path, busy))
        work = {'shortlist': shortlist, 'options': options, 'output': folder, 'report': ProgressPrinter()}
        report, sims = evaluate_runs(runs, split, values.folds, **work)
        if ground_truth is not None:
            report['eccv'] = ground_truth.metrics(sims)
        vectors = vectors_of(runs, split, options) if values.save_vectors else None
        if values.explain:
            pairs = explain.retrieve_images(sims, split.image_of_text, values.explain, values.folds)
            explained = explain.describe(runs[0], split, pairs, options, text_network)

        # Writes the results, then removes the blocks.
        saved.write(report, split, folder, sims=sims if values.save_sims else None, vectors=vectors)
        if explained:
            words = explanations.lines(explained['pairs']) if explanations.has_mismatches(explained) else ''
            explanation = words + explanations.write(explained, picture, folder)
        folder.end_jobs()

    _print_report(report)
    if ground_truth is not None:
        print(f'\n{eccv.table(report["eccv"])}\n')
    if compared is not None:
        print(f'\n{published.comparison(report, compared)}\n')
    print(f'written to {folder.path}')
    if explanation:
        print(explanation)
