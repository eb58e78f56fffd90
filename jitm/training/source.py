"""The interface of sources: where the rankings and token losses of the objective come from.

A source chooses candidates without gradient (`choose`), scores them with gradient (`score`) and makes rankings of the
scores of the global batch (`rank`). It also states which inputs of losses it supplies, and checks the config for what
it does not support. `jitm.training.candidates` has the sources of retrieval candidates, `jitm.training.generated` those
of synthetic captions and token predictions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex

from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import TokenTerm
from jitm.types import Batch, Ranking

Models = Mapping[str, tuple[Matcher, chex.ArrayTree]]  # name of a jointly trained model -> matcher and variables


class GlobalBatch(NamedTuple):
    """Properties of the global batch that rankings depend on.

    Attributes:
      image_index: int32 [B], equal numbers are the same image.
      relevance: float32 [B, B], phi of text j for image i; None without.
    """

    image_index: chex.Array
    relevance: chex.Array | None = None


class Inputs(NamedTuple):
    """Inputs to `Source.score`, for this device's part of a batch.

    Attributes:
      images: the B encoded images.
      texts: the encoded texts; text n describes image n.
      batch: the batch itself.
      chosen: the result of `Source.choose`; None if nothing was chosen.
      token_terms: the token terms whose predictions the source makes.
      axis: name of the device axis; None on one device.
      train: whether to score as in training.
    """

    images: Encoding
    texts: Encoding
    batch: Batch
    chosen: Any = None
    token_terms: Mapping[str, TokenTerm] = {}
    axis: str | None = None
    train: bool = True


class Source:
    """A source of rankings, of token losses, or of both.

    Attributes:
      rankings: names of the rankings that `rank` makes.
      predictions: names of the token predictions whose losses `score` computes, see `TokenTerm.predictions`.
      for_anchors: whether anchor models are scored on it too, so that others can learn from their scores.
      mismatched: whether it reads `Batch.mismatched`.
    """

    rankings: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    for_anchors = False
    mismatched = False

    @property
    def extra_pairs(self) -> int:
        """How many candidate pairs a batch holds in addition to the matching pairs."""
        return 0

    def supplies(self, config: Mapping[str, Any]) -> set[str]:
        """Returns the names in `objective.INPUTS` that the rankings hold with this config."""
        del config
        return set()

    def check(self, config: Mapping[str, Any], num_texts: int) -> None:
        """Raises a UserError if a config does not fit this source; `num_texts` is the number of training captions."""

    def choose(self, models: Models, name: str, batch: Batch, key: chex.PRNGKey, axis: str | None) -> Any:
        """Chooses candidates for a model, without gradient.

        Args:
          models: all models that train together.
          name: the model that trains on the candidates.
          batch: this device's part of the batch.
          key: for sampling.
          axis: name of the device axis; None on one device.

        Returns:
          Arrays for `Inputs.chosen`; None if nothing is chosen.
        """

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[Any, dict[str, chex.Array]]:
        """Scores the candidates of this device's queries.

        Args:
          matcher: the bound model.
          inputs: this device's pairs.

        Returns:
          Scores, leaves [B, ...] or None, and for each token term the loss [B] of every pair.
        """
        raise NotImplementedError

    def rank(self, scores: Any, batch: GlobalBatch, anchors: Sequence[Any] = ()) -> dict[str, Ranking]:
        """Makes rankings.

        Args:
          scores: the scores of the global batch.
          batch: the global batch.
          anchors: the scores of A anchor models, for `Ranking.anchor_scores`.

        Returns:
          Name in `rankings` -> Ranking.
        """
        del scores, batch, anchors
        return {}
