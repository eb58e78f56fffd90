"""A mining job: trained runs over a split, block by block, going on where it was stopped."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jitm import parallel
from jitm.data import candidates as candidates_lib
from jitm.data.candidates import Candidates
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.protocol import encode_vectors, make_scorer
from jitm.files import hash_arrays
from jitm.mining.found import Found
from jitm.mining.pairs import PairSearch
from jitm.mining.products import ProductSearch
from jitm.runs.progress import Progress
from jitm.runs.run import Run

SAVE_EVERY = 30.0  # seconds


def share(blocks: Sequence[Any]) -> list[Any]:
    """This process' part of the blocks, all in a row."""
    processes, process = jax.process_count(), jax.process_index()
    ends = [len(blocks) * n // processes for n in (process, process + 1)]
    return list(blocks[slice(*ends)])


def make_search(runs: Sequence[Run], split: Split, *, memory_mb: int | None, dtype: str | None) -> tuple[Any, list]:
    """The fastest search that the runs' models allow, and what its scores depend on."""
    scorers = [make_scorer(run, split, dtype=dtype, memory_mb=memory_mb) for run in runs]
    jobs = [scorer.job() for scorer in scorers]
    if not all(run.model.scores_products for run in runs):
        return PairSearch(scorers, split), jobs
    images, texts = encode_vectors(runs, scorers, split)
    memory_mb = runs[0].config['run']['memory_mb'] if memory_mb is None else memory_mb
    return ProductSearch(images, texts, split, memory_mb=memory_mb), jobs


def check_top_h(split: Split, top_h_texts: int, top_h_images: int) -> None:
    """Raises a UserError unless every image and every text has so many negatives."""
    fewest = split.num_texts - np.diff(split.texts_of_image[1]).max()
    for flag, wanted, there in (
        ('top_h_texts', top_h_texts, fewest),
        ('top_h_images', top_h_images, split.num_images - 1),
    ):
        if not 1 <= wanted <= there:
            raise UserError(f'--{flag} is {wanted}; {split.name} has 1 to {there} negatives')


def _search_part(
    search: ProductSearch | PairSearch, found: Found, path: Path, job: str, report: Callable[[Progress], None] | None
) -> None:
    """Goes through the rest of this process' blocks, and keeps what is found at a path."""
    mine = share(search.blocks())
    total, before = (sum(map(search.pairs, blocks)) for blocks in (mine, mine[: found.done]))
    began = saved = time.perf_counter()
    scored = 0
    for pairs in search.run(mine[found.done :], found):
        found.done += 1
        scored += pairs
        if report is not None:
            report(Progress.since(began, before, scored, total))
        if time.perf_counter() - saved > SAVE_EVERY:
            found.save(path, job)
            saved = time.perf_counter()
    found.save(path, job)


def describe(
    runs: Sequence[Run], split: Split, top_h_texts: int, top_h_images: int, dtype: str | None = None
) -> dict[str, Any]:
    """What mined lists depend on, as JSON."""
    return {
        'parameters': [hash_arrays(jax.tree.leaves(run.variables)) for run in runs],
        'steps': [run.step for run in runs],
        'data': split.identity,
        'top_h_texts': top_h_texts,
        'top_h_images': top_h_images,
        'dtype': runs[0].config['evaluation']['dtype'] if dtype is None else dtype,
    }


def search_all(
    search: ProductSearch | PairSearch,
    split: Split,
    folder: Path,
    job: str,
    top_h_texts: int,
    top_h_images: int,
    report: Callable[[Progress], None] | None = None,
) -> Found:
    """What all processes find, each a part; goes on from what the folder keeps of the same job."""
    parts = [folder / f'unfinished_{n}.npz' for n in range(jax.process_count())]
    path = parts[jax.process_index()]
    found = Found.load(path, job) or Found.nothing(split, top_h_texts, top_h_images)
    found.save(path, job)
    _search_part(search, found, path, job, report)
    parallel.barrier('searched')
    for part in parts:
        if part != path:
            theirs = Found.load(part, job)
            if theirs is None:
                raise UserError(f'{part} of another process is not here; all processes need one shared folder')
            found = found.join(theirs)
    parallel.barrier('joined')
    return found


def mine(
    runs: Sequence[Run],
    split: Split,
    split_name: str,
    folder: Path,
    *,
    top_h_texts: int,
    top_h_images: int,
    dtype: str | None = None,
    memory_mb: int | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Found:
    """Finds for every image the texts of others, and for every text the other images, that score highest.

    Args:
      runs: whose scores; of several their mean.
      split: the images and texts.
      split_name: such as 'train'.
      folder: gets the lists, see `jitm.data.candidates`; what is unfinished is kept there.
      top_h_texts: how many texts, 300 as published.
      top_h_images: how many images, 60.
      dtype: of the encodings, if not that of the first run's validation.
      memory_mb: for blocks of scores, if not that of the first run's config; where scores are inner products the
        encodings come on top, otherwise they are within.
      report: is told after each block.

    Returns:
      The lists, on all processes.

    Raises:
      UserError: if there are fewer negatives, memory is too little or scores are not finite.
    """
    check_top_h(split, top_h_texts, top_h_images)
    dtype = runs[0].config['evaluation']['dtype'] if dtype is None else dtype
    search, jobs = make_search(runs, split, memory_mb=memory_mb, dtype=dtype)
    described = {
        'scores': jobs,
        'top_h_texts': top_h_texts,
        'top_h_images': top_h_images,
        'blocks': search.blocks(),
        'processes': jax.process_count(),
    }
    job = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    found = search_all(search, split, folder, job, top_h_texts, top_h_images, report)
    broken = sum(int((~np.isfinite(x)).sum()) for x in (found.i2t[0], found.t2i[0], found.positives))
    manifest = describe(runs, split, top_h_texts, top_h_images, dtype) | {
        'workdirs': [str(run.workdir) for run in runs],
        'split': split_name,
    }
    try:
        if parallel.is_primary():
            if not broken:
                lists, scores = Candidates(found.i2t[1], found.t2i[1]), {'i2t': found.i2t[0], 't2i': found.t2i[0]}
                candidates_lib.save(lists, scores, manifest, split_name, folder)
            for path in folder.glob('unfinished_*.npz'):
                path.unlink()
    finally:
        parallel.barrier('mined')
    if broken:
        raise UserError(f'{broken} scores on {split.name} are not finite: the model is broken')
    return found
