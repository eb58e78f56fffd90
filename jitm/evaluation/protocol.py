"""Evaluation: every image is scored with every text, or only with those shortlisted by other runs, and ranked."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitm import metrics as metrics_lib
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import reranking
from jitm.files.outputs import OutputFolder
from jitm.inference.scoring import (
    DEFAULT_OPTIONS,
    Scorer,
    ScoringOptions,
    make_scorer,
    precision_of,
    share_precision,
)
from jitm.models.matcher import DualEncoder
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import Run, describe_inputs, describe_runs, read_tokens


@dataclasses.dataclass(frozen=True)
class Shortlist:
    """Re-ranking: only the best candidates of each query by the mean scores of other runs are scored.

    Attributes:
      runs: Runs that score every pair.
      top_m: Candidates per query.
      add: Whether these scores are added to those of the runs that order the candidates (BLIP; Li et al., 2022).
    """

    runs: Sequence[Run]
    top_m: int
    add: bool = False


def check_vectors(run: Run, consequence: str) -> None:
    """Raises a UserError unless a run scores by inner products of vectors.

    Args:
      run: The run.
      consequence: What it cannot do, and what to do instead, for the message.
    """
    if not isinstance(run.model, DualEncoder):
        raise UserError(
            f'the scores of {run.workdir} are not inner products of vectors ({type(run.model).__name__} as '
            f'configured), so {consequence}'
        )


def encode_vectors(runs: Sequence[Run], scorers: Sequence[Scorer], split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Encodes a split as vectors whose inner products are the mean scores of the runs.

    The mean of the inner products of several runs is the inner product of their concatenated vectors, divided by the
    number of runs.

    Args:
      runs: Runs that score by inner products.
      scorers: One per run, for this split.
      split: Images and texts.

    Returns:
      Images [I, D] and texts [T, D], in the dtype of the encodings.
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


def vectors_of(
    runs: Sequence[Run], split: Split, options: ScoringOptions = DEFAULT_OPTIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `encode_vectors` of some runs as float32, by default with the first run's precision."""
    options = share_precision(runs, options)
    images, texts = encode_vectors(runs, [make_scorer(run, split, options) for run in runs], split)
    return np.asarray(images, np.float32), np.asarray(texts, np.float32)


def mean_scores(
    runs: Sequence[Run],
    split: Split,
    options: ScoringOptions = DEFAULT_OPTIONS,
    *,
    pairs: np.ndarray | None = None,
    output: OutputFolder | None = None,
    report: Callable[[Progress], None] = ignore,
) -> np.ndarray:
    """Returns the mean similarities of several runs, float32 [I, T].

    Args:
      runs: Runs that can read the split.
      split: Images and texts.
      options: Precision and memory; the default precision of all runs is the first run's.
      pairs: bool [I, T], the pairs to score, the others get -inf; None for all.
      output: The folder in which finished blocks are kept until its `end_jobs`; None to keep none.
      report: Called after each block.

    Raises:
      UserError: See `make_scorer`, or if a score is not finite.
    """
    options = share_precision(runs, options)
    scorers = [make_scorer(run, split, options, pairs) for run in runs]
    sims = np.zeros((split.num_images, split.num_texts), np.float32)
    for scorer in scorers:
        sims += scorer.score(output, report)
    sims /= len(runs)
    not_finite = np.count_nonzero(~np.isfinite(sims if pairs is None else sims[pairs]))
    if not_finite:
        raise UserError(f'{not_finite} similarities on {split.name} are not finite: the model is broken')
    return sims


def describe_measurement(
    runs: Sequence[Run], split: Split, options: ScoringOptions, ties: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entry `protocol` of a report: how its numbers were measured.

    Args:
      runs: The runs that are measured together.
      split: Images and texts.
      options: Precision and memory.
      ties: What equal scores count against, such as 'the query'.
      details: Further entries, as JSON.
    """
    return {
        'data': split.name,
        'dataset': split.dataset,
        'split': split.name.rpartition('/')[2],
        **details,
        'ties': f'count against {ties}',
        **precision_of(runs[0], options),
        'runs': describe_runs(runs),
        'inputs': [describe_inputs(run) for run in runs],
    }


def describe_protocol(
    runs: Sequence[Run], split: Split, folds: int = 1, options: ScoringOptions = DEFAULT_OPTIONS
) -> dict[str, Any]:
    """Returns the protocol of an evaluation, see `evaluate_runs`; computes nothing.

    Raises:
      UserError: If the images cannot be split evenly.
    """
    if split.num_images % folds:
        raise UserError(f'{split.name} has {split.num_images} images, which --folds {folds} does not divide')
    sizes = {'images': split.num_images // folds, 'texts': split.num_texts // folds, 'folds': folds}
    return describe_measurement(runs, split, options, 'the query', sizes)


def evaluate_runs(
    runs: Sequence[Run],
    split: Split,
    folds: int = 1,
    *,
    shortlist: Shortlist | None = None,
    options: ScoringOptions = DEFAULT_OPTIONS,
    output: OutputFolder | None = None,
    report: Callable[[Progress], None] = ignore,
) -> tuple[dict[str, Any], np.ndarray]:
    """Evaluates one run, or the mean similarities of several.

    Args:
      runs: Runs trained on the same data set; their `reranker`, if there is a shortlist.
      split: Images and texts of this data set, see `runs.run.read_split`.
      folds: The images are split into this many consecutive parts, whose metrics are averaged.
      shortlist: Selects the pairs to score; None to score all.
      options: Precision and memory; the default precision is the first run's.
      output: The folder in which finished blocks are kept until its `end_jobs`; None to keep none.
      report: Called after each block.

    Returns:
      A report with `metrics` and `protocol`, and the similarities float32 [I, T], -inf for pairs not in the shortlist.

    Raises:
      UserError: If a run cannot read the split, or the images cannot be split evenly.
    """
    protocol = describe_protocol(runs, split, folds, options)
    score = functools.partial(mean_scores, split=split, options=options, output=output, report=report)
    if shortlist is None:
        sims = score(runs)
        return {'metrics': metrics_lib.retrieval_metrics(sims, split.image_of_text, folds), 'protocol': protocol}, sims
    for run in runs:  # fail before the shortlist is scored, which may take long
        read_tokens(run, split)
    first_sims = score(shortlist.runs)
    candidates = reranking.select_candidates(first_sims, split.image_of_text, shortlist.top_m, folds)
    sims = score([run.reranker for run in runs], pairs=candidates.pairs)
    if shortlist.add:
        sims += first_sims
    protocol['shortlist'] = {
        'runs': describe_runs(shortlist.runs),
        **precision_of(shortlist.runs[0], options),
        'top_m': shortlist.top_m,
        'scores': 'added to those of the shortlist' if shortlist.add else 'of the runs alone',
        'pairs': int(np.count_nonzero(candidates.pairs)),
        'total_pairs': sims.size,
        'others': 'ranked below, by the scores of the shortlist',
    }
    metrics = reranking.retrieval_metrics(sims, first_sims, candidates, split.image_of_text, folds)
    return {'metrics': metrics, 'protocol': protocol}, sims
