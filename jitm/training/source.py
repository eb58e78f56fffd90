"""What a source of candidates is: the interface between the step and the functions that rank."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax.numpy as jnp

from jitm.models.matcher import Matcher
from jitm.types import Ranking

Models = Mapping[str, tuple[Matcher, chex.ArrayTree]]  # name of a jointly trained model -> matcher and variables
Rankings = dict[str, Ranking]
TokenLosses = dict[str, chex.Array]  # name of a token term -> its unreduced loss of every pair, [B]


class Source(NamedTuple):
    """A source of rankings, of token losses, or of both.

    Attributes:
      rank: `(matcher, images, texts, batch, chosen, train) -> (rankings, token losses)`: scores candidates with a bound
        model, given the encoded images and texts and the part of the batch on this device, what `choose` returned, and
        whether the model trains. The result is that of the global batch. A model that others learn from is scored with
        `train=False`, and only by sources without `choose`.
      choose: `(models, name, batch, key) -> chosen`: chooses the candidates of this device's queries for the model of
        this name, without gradient; `models` are all models that train together. None if nothing is chosen.
      num_extra: The number of candidate pairs that the batch has besides its own, `Batch.extra`.
      mismatched: Whether the batch has `Batch.mismatched`.
    """

    rank: Callable[..., tuple[Rankings, TokenLosses]]
    choose: Callable[..., chex.ArrayTree] | None = None
    num_extra: int = 0
    mismatched: bool = False


def rank_list(scores: chex.Array, valid: chex.Array) -> Ranking:
    """Makes the ranking of queries with their positive and a list of negatives.

    Args:
      scores: float32 [B, 1 + H], the positive first.
      valid: bool [B, H], which of the negatives are real.
    """
    positives = jnp.zeros(scores.shape, bool).at[:, 0].set(True)
    return Ranking(scores, positives, jnp.pad(valid, [(0, 0), (1, 0)]))
