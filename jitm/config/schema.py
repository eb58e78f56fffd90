"""The config keys that are not arguments of a function, and the check of a whole config.

The type and range of any other key are the type hint of the argument that it sets, such as `margin: Margin`; see
`jitm.config.section`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Interval

from jitm.config.build import flatten, to_json
from jitm.config.hints import check_value
from jitm.errors import UserError
from jitm.files import check_local, expand
from jitm.types import DTYPES, Count, Index, Precision


class EvaluationKeys(TypedDict):
    """The section `evaluation`."""

    split: str
    member: str
    every_steps: Count | None
    dtype: Literal[*DTYPES]
    precision: Precision


class RunKeys(TypedDict):
    """The section `run`."""

    log_every: Count
    checkpoint_every: Count
    prefetch: Count
    memory_mb: Count
    activations_mb: Index | None


class StageConfig(TypedDict):
    """The config of one of two stages. A section `dict` configures functions or classes, whose hints are checked."""

    epochs: Count
    batch_size: Annotated[int, Ge(2)]  # one pair has no negatives
    encode_chunk: Count | None
    drop_last: bool
    precision: Precision
    length_multiple: Count
    vocabulary: dict
    augmentation: dict
    relevance: dict
    labels: dict
    offline: dict
    model: dict
    initialize: dict
    members: dict[str, dict]
    candidates: dict
    masking: dict
    scene_graphs: dict
    synthesis: dict
    terms: dict[str, dict]
    optimizer: dict
    evaluation: EvaluationKeys


class StagesKeys(TypedDict, total=False):
    """The section `stages`: nothing, or all of these."""

    first: StageConfig
    top_h_texts: Index
    top_h_images: Index
    fine_tune: bool


class Config(StageConfig):
    """A whole config."""

    seed: Annotated[int, Interval(ge=0, lt=2**32)]  # JAX reads 32 bits
    data: dict
    run: RunKeys
    stages: StagesKeys


FIRST = 'stages.first.'
SHARED = ('data', 'seed', 'run', 'stages')  # keys that `stages.first` lacks, since the stages share them


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the keys of a config, and the values that are not arguments of a function; `bind` checks the others.

    Args:
      config: A nested dict with every key of `configs/default.py`.

    Returns:
      The config as it is read from a run directory: tuples are lists.

    Raises:
      UserError: If a value has another type, is out of its range, cannot be written as JSON or is an address instead of
        a path, or a key is unknown or missing.
    """
    config = expand(to_json(config))
    for key, value in flatten(config).items():
        check_shared(key)
        if isinstance(value, str) and (key == 'data.root' or not key.startswith('data.')):  # a source may be one's own
            check_local(value, f"config key '{key}'")
    check_value('', config, Config)
    return config


def check_shared(key: str) -> None:
    """Raises a UserError if a dotted key is one that both stages share."""
    section = key.removeprefix(FIRST).partition('.')[0]
    if key.startswith(FIRST) and section in SHARED:
        raise UserError(f"config key '{key}' does not exist: both stages have '{section}' of the config; leave it out")
