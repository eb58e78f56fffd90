"""The relevance of each caption of the batch to each image, for losses that grade their negatives."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jitm.data.pipeline import Part, Pipeline, Sampler
from jitm.data.splits import Split
from jitm.devices import collectives
from jitm.models.matcher import Encoding, Matcher
from jitm.training.source import Conditions, Scored, Source
from jitm.types import Batch

if TYPE_CHECKING:
    from jitm.data.pairs.cider import Relevance  # imports scipy, which not every run needs


def with_relevance(source: Source, load: Callable[[Split], 'Relevance']) -> Source:
    """Returns a source whose rankings have the relevance of their candidates.

    Args:
      source: The source `in_batch`.
      load: The function that loads the relevance for a training split.
    """

    def samplers(pipeline: Pipeline) -> dict[str, Sampler]:
        relevance = load(pipeline.split)

        def pick(step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            del step
            return rows, np.zeros(0, int)

        def take(rows: np.ndarray, part: Part) -> np.ndarray:
            """Returns the relevance of all texts of the global batch for the images of this part, [B, C]."""
            return relevance.phi(pipeline.split.image_of_text[part.cut(rows)], rows)

        identity = {'relevance': relevance.hash} if relevance.hash else {}
        return source.samplers(pipeline) | {'relevance': Sampler(pick, take, identity)}

    def score(matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: Any, train: bool) -> Scored:
        rankings, losses = source.score(matcher, images, texts, batch, seen, train)
        phi = collectives.gather_results(batch.drawn['relevance'])
        views = len(rankings['i2t'].scores) // len(phi)
        phi = phi.repeat(views, axis=0).repeat(views, axis=1)
        relevances = {'i2t': phi, 't2i': phi.T}
        return rankings | {way: rankings[way].replace(relevance=values) for way, values in relevances.items()}, losses

    return source._replace(score=score, samplers=samplers)


CONDITIONS = Conditions(
    gives=('relevance',), reader='a term whose loss takes relevance, such as ranking.adaptive_margin'
)
