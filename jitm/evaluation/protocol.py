"""Evaluation: score every image with every text, or those that a cheaper run proposes, and rank.

Runs are read from their directories alone: config and vocabulary travel in the checkpoint.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm import metrics as metrics_lib
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import reranking
from jitm.evaluation.scoring import FinishedBlocks, Scorer
from jitm.files import replacing
from jitm.runs.progress import Progress
from jitm.runs.run import Run, describe_runs, read_split, read_tokens


@dataclasses.dataclass(frozen=True)
class Proposals:
    """What is scored: only the best candidates of each query by the mean scores of other runs; see `jitm.reranking`.

    Attributes:
      runs: that score every pair.
      top_m: how many candidates each query gets.
    """

    runs: Sequence[Run]
    top_m: int


def make_scorer(
    run: Run,
    split: Split,
    *,
    dtype: str | None = None,
    memory_mb: int | None = None,
    pairs: np.ndarray | None = None,
) -> Scorer:
    """Makes ready to score a split with a run.

    Args:
      run: a trained matcher.
      split: features and texts.
      dtype: of the encodings, if not that of the run's validation.
      memory_mb: see `Scorer`, if not that of the run's config.
      pairs: bool [I, T], which pairs are scored; None for all.

    Raises:
      UserError: if the features or texts are none that the run can read, or the memory is too little.
    """
    return Scorer(
        run.model,
        run.variables,
        split,
        read_tokens(run, split),
        memory_mb=run.config['run']['memory_mb'] if memory_mb is None else memory_mb,
        dtype=_dtype(run, dtype),
        pairs=pairs,
    )


def _dtype(run: Run, dtype: str | None) -> str:
    return run.config['evaluation']['dtype'] if dtype is None else dtype


def check_vectors(runs: Sequence[Run]) -> None:
    """Raises a UserError unless the scores of all runs are products of vectors."""
    for run in runs:
        if not run.model.scores_products:
            raise UserError(
                f'the scores of {run.workdir} are no products of vectors ({type(run.model).__name__} as configured), '
                'so it has none to save; leave out --save_vectors'
            )


def encode_vectors(runs: Sequence[Run], scorers: Sequence[Scorer], split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Encodes a split as vectors whose inner products are the mean of the runs' scores.

    The mean of several runs' inner products is the inner product of their vectors put end to end, by their number.

    Args:
      runs: that score by products, see `Matcher.scores_products`.
      scorers: of each run.
      split: that they score.

    Returns:
      Images [I, D] and texts [T, D], as precise as the scorers' encodings.
    """
    encoded = [
        (run.model.vectors(scorer.encode_images(np.arange(split.num_images))), run.model.vectors(scorer.encode_texts()))
        for run, scorer in zip(runs, scorers, strict=True)
    ]
    images, texts = encoded[0]
    if len(runs) > 1:
        images, texts = (np.concatenate(side, axis=1) for side in zip(*encoded, strict=True))
        images /= len(runs)
    return images, texts


def mean_scores(
    runs: Sequence[Run],
    split: Split,
    *,
    dtype: str | None = None,
    memory_mb: int | None = None,
    pairs: np.ndarray | None = None,
    keep_blocks: Path | None = None,
    report: Callable[[Progress], None] | None = None,
) -> np.ndarray:
    """Scores a split with several runs: the mean of their similarities, float32 [I, T].

    Args:
      runs: that can read the split.
      split: features and texts.
      dtype: of the encodings, if not that of the first run's validation.
      memory_mb: see `Scorer`, if not that of each run's config.
      pairs: bool [I, T], which pairs are scored, the others being -inf; None for all.
      keep_blocks: a folder for finished blocks, to go on from after an interruption; None to keep none.
      report: is told after each block.

    Raises:
      UserError: as `make_scorer`, or if a score is not finite.
    """
    dtype = _dtype(runs[0], dtype)
    scorers = [make_scorer(run, split, dtype=dtype, memory_mb=memory_mb, pairs=pairs) for run in runs]
    sims = np.zeros((split.num_images, split.num_texts), np.float32)
    for scorer in scorers:
        sims += scorer.score(None if keep_blocks is None else FinishedBlocks(keep_blocks, scorer.job()), report)
    sims /= len(runs)
    broken = np.count_nonzero(~np.isfinite(sims if pairs is None else sims[pairs]))
    if broken:
        raise UserError(f'{broken} similarities on {split.name} are not finite: the model is broken')
    return sims


def evaluate_runs(
    runs: Sequence[Run],
    split_name: str,
    folds: int,
    data_root: str | None = None,
    check: Callable[[Mapping[str, Any]], object] | None = None,
    *,
    proposals: Proposals | None = None,
    dtype: str | None = None,
    memory_mb: int | None = None,
    keep_blocks: Path | None = None,
    report: Callable[[Progress], None] | None = None,
) -> tuple[dict[str, Any], np.ndarray]:
    """Evaluates one run, or several as the mean of their similarity matrices.

    Args:
      runs: trained on the same data set.
      split_name: such as 'dev'.
      folds: consecutive parts the images are split into, their metrics being averaged.
      data_root: where the data lie now, if not where the run was trained.
      check: gets the protocol before anything is encoded, and may raise.
      proposals: what proposes the pairs that are scored; None to score all.
      dtype: of the encodings, if not that of the first run's validation.
      memory_mb: see `Scorer`, if not that of each run's config.
      keep_blocks: a folder for finished blocks, to go on from after an interruption; None to keep none.
      report: is told after each block.

    Returns:
      A report of `metrics` and `protocol`, and the similarities float32 [I, T], -inf where a pair was not proposed.

    Raises:
      UserError: if the data cannot be read, the runs differ in their data, or the folds do not fit.
    """
    split = read_split([*runs, *(proposals.runs if proposals else ())], split_name, data_root)
    if split.num_images % folds:
        raise UserError(f'{split.name} has {split.num_images} images, which --folds {folds} does not divide')
    protocol = {
        'data': split.name,
        'dataset': split.dataset,
        'split': split_name,
        'images': split.num_images // folds,
        'texts': split.num_texts // folds,
        'folds': folds,
        'ties': 'count against the query',
        'dtype': _dtype(runs[0], dtype),
        'runs': describe_runs(runs),
        'vocabulary_hash': [run.vocabulary.hash for run in runs],
    }
    if check is not None:
        check(protocol)
    score = functools.partial(
        mean_scores, split=split, dtype=dtype, memory_mb=memory_mb, keep_blocks=keep_blocks, report=report
    )
    if proposals is None:
        sims = score(runs)
        return {'metrics': metrics_lib.retrieval_metrics(sims, split.image_of_text, folds), 'protocol': protocol}, sims
    for run in runs:  # before the other runs are at work
        read_tokens(run, split)
    proposing = score(proposals.runs)
    proposed = reranking.propose(proposing, split.image_of_text, proposals.top_m, folds)
    sims = score(runs, pairs=proposed.pairs)
    protocol['proposals'] = {
        'runs': describe_runs(proposals.runs),
        'dtype': _dtype(proposals.runs[0], dtype),
        'top_m': proposals.top_m,
        'pairs': int(np.count_nonzero(proposed.pairs)),
        'of_pairs': sims.size,
        'others': 'behind them, in the order of the proposing scores',
    }
    metrics = reranking.retrieval_metrics(sims, proposing, proposed, split.image_of_text, folds)
    return {'metrics': metrics, 'protocol': protocol}, sims


def write_report(report: Mapping[str, Any], sims: np.ndarray | None, folder: Path) -> None:
    """Writes `metrics.json` and, if given, `sims.npy` (float32 [I, T]) into a folder."""
    if sims is not None:
        with replacing(folder / 'sims.npy') as file:
            np.save(file, sims)
    with replacing(folder / 'metrics.json') as file:
        file.write((json.dumps(report, indent=2) + '\n').encode())


def write_vectors(
    runs: Sequence[Run], split: Split, folder: Path, *, dtype: str | None = None, memory_mb: int | None = None
) -> None:
    """Writes `vectors.npz` into a folder: `images` and `texts` of `encode_vectors`, float32, and `image_of_text`."""
    scorers = [make_scorer(run, split, dtype=dtype, memory_mb=memory_mb) for run in runs]
    images, texts = (np.asarray(side, np.float32) for side in encode_vectors(runs, scorers, split))
    with replacing(folder / 'vectors.npz') as file:
        np.savez(file, images=images, texts=texts, image_of_text=split.image_of_text)
