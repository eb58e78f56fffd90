"""The relevance of each caption of the batch to each image, for losses that grade their negatives."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jitm.config.section import Bound
from jitm.data.load import LOADER
from jitm.data.pipeline import Part, Pipeline, Sampler
from jitm.data.splits import Split
from jitm.devices import collectives
from jitm.models.matcher import Encoding, Matcher
from jitm.training.source import Conditions, Context, Scored, Source
from jitm.types import Batch

if TYPE_CHECKING:
    from jitm.data.pairs.cider import Relevance  # imports scipy, which not every run needs


SECTION, SWITCH = 'relevance', 'relevance.source'
DECLARED = LOADER
CONDITIONS = Conditions(
    gives={'relevance': "set relevance.source, such as 'cider.from_captions', and candidates.source to 'in_batch'"},
    reader='a term whose loss takes relevance, such as ranking.adaptive_margin',
)


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
        return rankings | {way: rankings[way].with_inputs(relevance=x) for way, x in relevances.items()}, losses

    return source._replace(score=score, samplers=samplers)


def add(source: Source, bound: Bound | None, context: Context) -> Source:
    """Adds the relevance that the section `relevance` loads, if it names a source."""
    del context
    return with_relevance(source, bound) if bound else source
