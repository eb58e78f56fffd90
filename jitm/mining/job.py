"""A mining job: trained runs over a split, block by block, going on where it was stopped."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import signal
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data import candidates as candidates_lib
from jitm.data.candidates import Candidates
from jitm.data.pipeline import bucket
from jitm.data.splits import Split
from jitm.errors import InterruptedRun, UserError
from jitm.evaluation import Run, make_scorer
from jitm.files import replacing
from jitm.mining.search import group_size, merge, nothing, rank_block, rank_products
from jitm.scoring import Progress, Scorer, hash_arrays
from jitm.tiles import map_tiles

Lists = tuple[np.ndarray, np.ndarray]

MOST_QUERIES = 512  # multiplied at a time on each device
TILES = 8  # such multiplications in a block
ALIVE = 2  # blocks: the scores of one are ranked, on one core, while those of the other are multiplied
SAVE_EVERY = 30.0  # seconds


@dataclasses.dataclass
class Found:
    """What a process has found so far.

    Attributes:
      done: how many of its blocks it has been through.
      i2t: lists [I, h] of texts, see `jitm.mining.search`.
      t2i: lists [T, h'] of images.
      positives: float32 [T], the score of each text with its own image; -inf where it has not been seen.
    """

    done: int
    i2t: Lists
    t2i: Lists
    positives: np.ndarray

    @classmethod
    def nothing(cls, split: Split, top_h_texts: int, top_h_images: int) -> 'Found':
        """Before the first block."""
        lists = nothing(split.num_images, top_h_texts), nothing(split.num_texts, top_h_images)
        return cls(0, *lists, np.full(split.num_texts, -np.inf, np.float32))

    def save(self, path: Path, job: str) -> None:
        """Keeps this, and which job it is of, in place of what was kept before."""
        with replacing(path) as file:
            np.savez(file, job=job, done=self.done, positives=self.positives, **self._arrays())

    def _arrays(self) -> dict[str, np.ndarray]:
        lists = {'i2t': self.i2t, 't2i': self.t2i}
        return {f'{name}_{n}': array for name, pair in lists.items() for n, array in enumerate(pair)}

    @classmethod
    def load(cls, path: Path, job: str) -> 'Found | None':
        """What `save` kept; None if it is of another job, damaged or not there."""
        try:
            with path.open('rb') as whole, np.load(whole) as file:
                if str(file['job']) != job:
                    return None
                lists = [(file[f'{name}_0'], file[f'{name}_1']) for name in ('i2t', 't2i')]
                return cls(int(file['done']), *lists, file['positives'])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def join(self, other: 'Found') -> 'Found':
        """What two processes have found together."""

        def joined(mine: Lists, theirs: Lists) -> Lists:
            return jax.device_get(jax.jit(merge)(mine, *theirs))

        return Found(
            self.done,
            joined(self.i2t, other.i2t),
            joined(self.t2i, other.t2i),
            np.maximum(self.positives, other.positives),
        )


def share(blocks: Sequence[Any]) -> list[Any]:
    """This process' part of the blocks, all in a row."""
    processes, process = jax.process_count(), jax.process_index()
    ends = [len(blocks) * n // processes for n in (process, process + 1)]
    return list(blocks[slice(*ends)])


class ProductSearch:
    """Both directions by inner products of all encodings, which are kept; few queries meet all candidates at a time."""

    def __init__(self, images: np.ndarray, texts: np.ndarray, split: Split, *, memory_mb: int):
        """Decides how many queries a block has.

        Args:
          images: [I, D].
          texts: [T, D].
          split: which text describes which image.
          memory_mb: MiB for blocks of scores; the vectors come on top.

        Raises:
          UserError: if not even one query fits.
        """
        self._vectors, self._split = {'i2t': images, 't2i': texts}, split
        most = memory_mb * 2**20 // (ALIVE * 4 * max(split.num_images, split.num_texts))
        devices = parallel.num_local_devices()
        self._tile = min(most // devices, MOST_QUERIES)
        self._queries = TILES * self._tile * devices
        if not self._queries:
            raise UserError(f'{memory_mb} MiB (run.memory_mb) do not hold the scores of {devices} queries; allow more')

    def blocks(self) -> list[tuple[str, int]]:
        """Direction and first query of each block."""
        return [
            (direction, start)
            for direction, vectors in self._vectors.items()
            for start in range(0, len(vectors), self._queries)
        ]

    def pairs(self, block: tuple[str, int]) -> int:
        """How many pairs a block scores."""
        direction, start = block
        queries, candidates = (len(self._vectors[d]) for d in (direction, _other(direction)))
        return candidates * min(self._queries, queries - start)

    def _excluded(self, direction: str, queries: np.ndarray, beyond: int) -> np.ndarray:
        """Ids [N, P] that are no candidates of some queries: what corresponds, and those from the last to `beyond`."""
        candidates = len(self._vectors[_other(direction)])
        if direction == 't2i':
            own = self._split.image_of_text[queries][:, None]
        else:
            texts, starts = self._split.texts_of_image
            own = starts[queries][:, None] + np.arange(np.diff(starts).max())
            own = np.where(own < starts[queries + 1][:, None], texts[np.minimum(own, len(texts) - 1)], beyond)
        filled_up = np.broadcast_to(np.arange(candidates, beyond), (len(queries), beyond - candidates))
        return np.concatenate([own, filled_up], axis=1).astype(np.int32)

    def run(self, blocks: Sequence[tuple[str, int]], found: Found) -> Iterator[int]:
        """Goes through blocks, entering into `found`; yields the pairs of each."""
        for direction in self._vectors:
            yield from self._run(direction, [start for d, start in blocks if d == direction], found)
        own = self._split.image_of_text
        for start in range(0, len(own), self._queries):
            some = slice(start, start + self._queries)
            images, texts = (
                x.astype(np.float32) for x in (self._vectors['i2t'][own[some]], self._vectors['t2i'][some])
            )
            found.positives[some] = np.einsum('nd,nd->n', images, texts)

    def _run(self, direction: str, starts: Sequence[int], found: Found) -> Iterator[int]:
        scores, ids = getattr(found, direction)
        vectors, top_h = self._vectors[direction], scores.shape[1]
        candidates = self._vectors[_other(direction)]
        group = group_size(len(candidates), top_h)
        beyond = bucket(len(candidates), group)
        candidates = np.pad(candidates, [(0, beyond - len(candidates)), (0, 0)])
        candidates = parallel.put_everywhere(candidates)
        rank = _rank_products(top_h, group, self._tile)

        def best(start: int) -> Lists:
            queries = np.minimum(np.arange(start, start + self._queries), len(vectors) - 1)
            rows = vectors[queries], self._excluded(direction, queries, beyond)
            return jax.device_get(rank(parallel.put_rows(rows), candidates))

        with concurrent.futures.ThreadPoolExecutor(ALIVE) as pool:
            first = map(best, starts[:1])  # compiles
            for start, lists in zip(starts, itertools.chain(first, pool.map(best, starts[1:])), strict=True):
                count = min(self._queries, len(vectors) - start)
                for whole, part in zip((scores, ids), lists, strict=True):
                    whole[start : start + count] = part[:count]
                yield self.pairs((direction, start))


def _other(direction: str) -> str:
    return {'i2t': 't2i', 't2i': 'i2t'}[direction]


@functools.lru_cache(maxsize=4)
def _rank_products(top_h: int, group: int, tile: int) -> Callable:
    def rank(rows: tuple[chex.Array, chex.Array], candidates: chex.Array) -> tuple[chex.Array, chex.Array]:
        return map_tiles(lambda some: rank_products(*some, candidates, top_h, group), rows, tile)

    return parallel.map_rows(rank)


def _name(rows: np.ndarray, columns: np.ndarray) -> tuple[int, int]:
    return int(rows[0]), int(columns[0])


class PairSearch:
    """Both directions at once by the scoring engine, for models that compare pair by pair."""

    def __init__(self, scorers: Sequence[Scorer], split: Split):
        """Gives all scorers blocks of one shape."""
        self._scorers, self._split = scorers, split
        for scorer in scorers:
            scorer.images, scorer.texts = (min(getattr(s, side) for s in scorers) for side in ('images', 'texts'))
        self._pairs = {_name(*block): len(block[0]) * len(block[1]) for block in scorers[0].blocks()}

    def blocks(self) -> list[tuple[int, int]]:
        """The first image and the first text of each block."""
        return list(self._pairs)

    def pairs(self, block: tuple[int, int]) -> int:
        """How many pairs a block scores."""
        return self._pairs[block]

    def run(self, blocks: Sequence[tuple[int, int]], found: Found) -> Iterator[int]:
        """Goes through blocks, entering into `found`; yields the pairs of each."""
        mine = set(blocks)
        for rows, columns in self._scorers[0].blocks():
            if _name(rows, columns) in mine:
                block = sum(scorer.score_block(rows, columns) for scorer in self._scorers) / len(self._scorers)
                self._enter(block, rows, columns, found)
                yield len(rows) * len(columns)

    def _enter(self, block: chex.Array, rows: np.ndarray, columns: np.ndarray, found: Found) -> None:
        def padded(array: np.ndarray, axis: int, value: Any) -> np.ndarray:
            missing = block.shape[axis] - len(array)
            return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), constant_values=value)

        before = [
            tuple(padded(array[index], axis, 0) for array in lists)
            for axis, (lists, index) in enumerate(((found.i2t, rows), (found.t2i, columns)))
        ]
        owners = padded(self._split.image_of_text[columns], 1, -2)
        ids = padded(rows.astype(np.int32), 0, -1), padded(columns.astype(np.int32), 1, -1)
        images, texts, positives = jax.device_get(rank_block(*before, block, *ids, owners))
        for lists, index, new in ((found.i2t, rows, images), (found.t2i, columns, texts)):
            for whole, part in zip(lists, new, strict=True):
                whole[index] = part[: len(index)]
        found.positives[columns] = np.maximum(found.positives[columns], positives[: len(columns)])


def make_search(runs: Sequence[Run], split: Split, *, memory_mb: int | None, dtype: str | None) -> tuple[Any, list]:
    """The fastest search that the runs' models allow, and what its scores depend on.

    The mean of several runs' inner products is the inner product of their vectors put end to end, by their number.
    """
    scorers = [make_scorer(run, split, dtype=dtype, memory_mb=memory_mb) for run in runs]
    jobs = [scorer.job() for scorer in scorers]
    if not all(run.model.scores_products for run in runs):
        return PairSearch(scorers, split), jobs
    encoded = [
        (
            run.model.vectors(scorer.encode_images(np.arange(split.num_images))),
            run.model.vectors(scorer.encode_texts()),
        )
        for run, scorer in zip(runs, scorers, strict=True)
    ]
    images, texts = encoded[0]
    if len(runs) > 1:
        images, texts = (np.concatenate(side, axis=1) for side in zip(*encoded, strict=True))
        images /= len(runs)
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


@contextlib.contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """Makes SIGINT and SIGTERM an InterruptedRun, which says where mining goes on."""
    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRun(f'stopped; the same command goes on from what is in {folder}') from None
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


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
