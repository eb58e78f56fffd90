"""What is retrieved for a query, and queries spread over a split."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Retrieved:
    """The best candidates of a query.

    Attributes:
      top: Indices of the candidates with the highest scores, in descending order.
      scores: Their scores.
      correct: Which of them match the query.
      rank: The rank of the first match among all candidates; 1 is best.
    """

    top: Sequence[int]
    scores: Sequence[float]
    correct: Sequence[bool]
    rank: int


def retrieve(scores: np.ndarray, matches: np.ndarray, count: int) -> Retrieved:
    """Returns the best candidates of a query; ties count against the query.

    Args:
      scores: The scores of all candidates, [C].
      matches: Which candidates match the query, bool [C]; at least one.
      count: The number of candidates to return; all, if there are fewer.
    """
    order = np.lexsort((matches, -scores))
    top = order[:count]
    return Retrieved(top.tolist(), scores[top].tolist(), matches[top].tolist(), int(np.argmax(matches[order])) + 1)


def evenly_spaced(count: int, total: int) -> list[int]:
    """Returns `count` indices below `total`, evenly spaced from 0; all, if there are fewer."""
    count = min(count, total)
    return [n * total // count for n in range(count)]
