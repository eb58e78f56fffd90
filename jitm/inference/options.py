"""Precision and memory of scoring."""

import dataclasses

from jitm.errors import UserError
from jitm.runs.run import Run
from jitm.types import DTYPES


@dataclasses.dataclass(frozen=True)
class ScoringOptions:
    """Precision and memory of scoring.

    Attributes:
      dtype: The dtype of the encodings, a key of `DTYPES`; None for `evaluation.dtype` of the run's config. Scores are
        float32.
      memory_mb: MiB that a block may take on host and devices, with its encodings and intermediate arrays: everything
        but the parameters and the similarity matrix; None for `run.memory_mb` of the run's config.
    """

    dtype: str | None = None
    memory_mb: int | None = None


DEFAULT_OPTIONS = ScoringOptions()


def check_dtype(dtype: str) -> None:
    """Raises a UserError unless `dtype` is one of `DTYPES`."""
    if dtype not in DTYPES:
        raise UserError(f"dtype is '{dtype}'; take 'float32' or 'bfloat16'")


def resolve_options(run: Run, options: ScoringOptions) -> ScoringOptions:
    """Replaces None in the options by the values of a run's config."""
    config = run.config
    return ScoringOptions(
        dtype=config['evaluation']['dtype'] if options.dtype is None else options.dtype,
        memory_mb=config['run']['memory_mb'] if options.memory_mb is None else options.memory_mb,
    )
