"""Precision and memory of scoring."""

import dataclasses
from collections.abc import Sequence

from jitm.errors import ArgumentError, UserError, check_choice
from jitm.runs.run import Run
from jitm.types import DTYPES, PRECISIONS, Precision


@dataclasses.dataclass(frozen=True)
class ScoringOptions:
    """Precision and memory of scoring.

    Attributes:
      dtype: The dtype of the encodings, a key of `DTYPES`; None for `evaluation.dtype` of the run's config. Scores are
        float32.
      memory_mb: MiB that a block may take on host and devices, with its encodings and intermediate arrays: everything
        but the parameters and the similarity matrix; None for `run.memory_mb` of the run's config.
      precision: The precision of products of float32 arrays; None for `evaluation.precision` of the run's config.
    """

    dtype: str | None = None
    memory_mb: int | None = None
    precision: Precision | None = None


DEFAULT_OPTIONS = ScoringOptions()


def check_options(options: ScoringOptions) -> None:
    """Raises a UserError unless dtype and precision are known."""
    try:
        check_choice(options.dtype, DTYPES, 'dtype')
        check_choice(options.precision, PRECISIONS, 'precision')
    except ArgumentError as error:
        raise UserError(str(error)) from None


def resolve_options(run: Run, options: ScoringOptions) -> ScoringOptions:
    """Replaces None in the options by the values of a run's config."""
    sections = run.config['evaluation'] | run.config['run']
    given = dataclasses.asdict(options)
    return ScoringOptions(**{name: sections[name] if value is None else value for name, value in given.items()})


def precision_of(run: Run, options: ScoringOptions) -> dict[str, str]:
    """Returns `dtype` and `precision` of the scores of a run, for JSON reports."""
    resolved = resolve_options(run, options)
    return {'dtype': resolved.dtype, 'precision': resolved.precision}


def share_precision(runs: Sequence[Run], options: ScoringOptions) -> ScoringOptions:
    """Sets the default dtype and precision of all runs to those of the first."""
    return dataclasses.replace(options, **precision_of(runs[0], options))
