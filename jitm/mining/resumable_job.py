"""A mining job: scores a split with trained runs, block by block, and resumes after an interruption."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jitm.data.pairs import mined_lists as candidates_lib
from jitm.data.pairs.mined_lists import Candidates
from jitm.data.splits import Split
from jitm.devices import agreement, parallel
from jitm.errors import UserError
from jitm.evaluation.protocol import encode_vectors
from jitm.files import hash_arrays, hash_json
from jitm.files.outputs import Job
from jitm.inference.scoring import (
    DEFAULT_OPTIONS,
    ScoringOptions,
    make_scorer,
    precision_of,
    resolve_options,
    share_precision,
)
from jitm.mining.state import MiningState
from jitm.mining.top_h import PairSearch, ProductSearch
from jitm.models.matcher import DualEncoder
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import Run

SAVE_EVERY = 30.0  # seconds

Search = ProductSearch | PairSearch


def make_search(runs: Sequence[Run], split: Split, options: ScoringOptions) -> tuple[Search, list[dict[str, Any]]]:
    """Returns the fastest search that the runs' models allow, and the cache keys of their scorers."""
    scorers = [make_scorer(run, split, options) for run in runs]
    keys = [scorer.cache_key() for scorer in scorers]
    if not all(isinstance(run.model, DualEncoder) for run in runs):
        return PairSearch(scorers, split), keys
    images, texts = encode_vectors(runs, scorers, split)
    options = resolve_options(runs[0], options)
    return ProductSearch(images, texts, split, memory_mb=options.memory_mb, precision=options.precision), keys


def check_top_h(split: Split, top_h_texts: int, top_h_images: int) -> None:
    """Raises a UserError unless every image and every text has this many negatives."""
    min_negatives = split.num_texts - np.diff(split.texts_of_image[1]).max()
    for flag, top_h, available in (
        ('top_h_texts', top_h_texts, min_negatives),
        ('top_h_images', top_h_images, split.num_images - 1),
    ):
        if not 1 <= top_h <= available:
            raise UserError(f'{flag} is {top_h}; {split.name} has 1 to {available} negatives')


def _search_local(search: Search, state: MiningState, job: Job, report: Callable[[Progress], None]) -> None:
    """Searches the remaining blocks of this process and saves the state at regular intervals."""
    sizes = search.blocks()
    process = jax.process_index()
    first = len(sizes) * process // jax.process_count()
    last = len(sizes) * (process + 1) // jax.process_count()
    blocks = list(sizes)[first:last]
    total = sum(sizes[block] for block in blocks)
    finished = sum(sizes[block] for block in blocks[: state.done])
    start = saved = time.perf_counter()
    scored = 0
    for pairs in search.run(blocks[state.done :], state):
        state.done += 1
        scored += pairs
        report(Progress.since(start, finished, scored, total))
        if time.perf_counter() - saved > SAVE_EVERY:
            state.save(job, process)
            saved = time.perf_counter()
    state.save(job, process)


def _check_shared(job: Job) -> None:
    """Raises a UserError unless the states of all processes are visible to this process."""
    for process in range(jax.process_count()):
        if not agreement.sees(lambda process=process: MiningState.load(job, process) is not None):
            path = job.path / str(process)
            raise UserError(f'{path} of another process is not seen here; give all processes one shared folder')


def describe(
    runs: Sequence[Run], split: Split, top_h_texts: int, top_h_images: int, options: ScoringOptions = DEFAULT_OPTIONS
) -> dict[str, Any]:
    """Returns all inputs of mined lists, as JSON; for the arguments see `mine`."""
    return {
        'parameters': [hash_arrays(jax.tree.leaves(run.variables)) for run in runs],
        'steps': [run.step for run in runs],
        'data': split.identity,
        'top_h_texts': top_h_texts,
        'top_h_images': top_h_images,
        **precision_of(runs[0], options),
    }


def search_all(
    search: Search,
    split: Split,
    job: Job,
    top_h_texts: int,
    top_h_images: int,
    report: Callable[[Progress], None] = ignore,
) -> MiningState:
    """Searches all blocks, split over the processes, and merges their lists.

    Args:
      search: The search.
      split: Images and texts.
      job: The states of all processes, from which the same job resumes.
      top_h_texts: The number of texts per image.
      top_h_images: The number of images per text.
      report: A function that is called after each block.

    Returns:
      The lists of all processes.

    Raises:
      UserError: In all processes, if they do not share the folder.
    """
    process = jax.process_index()
    state = MiningState.load(job, process) or MiningState.initial(split, top_h_texts, top_h_images)
    agreement.in_all(lambda: state.save(job, process))
    agreement.in_all(lambda: _check_shared(job))
    _search_local(search, state, job, report)
    parallel.barrier('searched')
    for number in range(jax.process_count()):
        if number != process:
            state = state.join(MiningState.load(job, number))
    parallel.barrier('joined')
    return state


def mine(
    runs: Sequence[Run],
    split: Split,
    split_name: str,
    folder: Path,
    *,
    top_h_texts: int,
    top_h_images: int,
    options: ScoringOptions = DEFAULT_OPTIONS,
    report: Callable[[Progress], None] = ignore,
) -> MiningState:
    """Finds the highest-scoring texts of other images for every image, and the highest-scoring other images per text.

    Args:
      runs: The runs whose scores are averaged.
      split: Images and texts.
      split_name: A name such as 'train'.
      folder: The output folder, which is new, is empty or has mined lists, see `jitm.data.pairs.mined_lists`; it also
        keeps unfinished work.
      top_h_texts: The number of texts per image, 300 as published.
      top_h_images: The number of images per text, 60 as published.
      options: The precision and the memory, by default the first run's. Where scores are inner products, the
        encodings need memory on top of `memory_mb`.
      report: A function that is called after each block.

    Returns:
      The lists, on all processes.

    Raises:
      UserError: If there are fewer negatives, the folder has files that jitm did not write, the memory is too little or
        scores are not finite.
    """
    # Check the request, the folder, and that all processes have the same job.
    top_h = {'top_h_texts': top_h_texts, 'top_h_images': top_h_images}
    check_top_h(split, **top_h)
    output = candidates_lib.output_folder(folder, split_name)
    options = share_precision(runs, options)
    manifest = describe(runs, split, options=options, **top_h)
    agreement.check_same(manifest | {'memory_mb': options.memory_mb, 'devices': parallel.num_local_devices()})
    search, keys = make_search(runs, split, options)
    inputs = {'scores': keys, **top_h, 'blocks': [*search.blocks()], 'processes': jax.process_count()}
    agreement.check_same({'job': hash_json(inputs)})
    # Search, or resume.
    state = search_all(search, split, output.begin(inputs), report=report, **top_h)
    not_finite = sum(int((~np.isfinite(x)).sum()) for x in (state.i2t[0], state.t2i[0], state.positives))
    # Write the lists, unless scores are not finite, and remove the states of the processes.
    manifest |= {'workdirs': [str(run.workdir) for run in runs], 'split': split_name}
    try:
        if parallel.is_primary():
            if not not_finite:
                lists = Candidates(state.i2t[1], state.t2i[1])
                scores = {'i2t': state.i2t[0], 't2i': state.t2i[0]}
                candidates_lib.save(lists, scores, manifest, split_name, folder)
            output.end_jobs()
    finally:
        parallel.barrier('mined')
    if not_finite:
        raise UserError(f'{not_finite} scores on {split.name} are not finite: the model is broken')
    return state
