"""The relevance of each caption of the batch to each image, for losses that grade their negatives."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from jitm.config.section import Bound
from jitm.data.load import LOADER
from jitm.data.pipeline import Sampler
from jitm.data.splits import Split
from jitm.devices import collectives
from jitm.training.source import Conditions, Context, Source, pick_rows

if TYPE_CHECKING:
    from jitm.data.pairs.cider import Relevance  # imports scipy, which not every run needs


SECTION = 'relevance'
SWITCH = 'relevance.source'
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

    def samplers(pipeline):
        relevance = load(pipeline.split)

        def take(rows, part):
            """Returns the relevance of all texts of the global batch for the images of this part, [B, C]."""
            return relevance.phi(pipeline.split.image_of_text[part.cut(rows)], rows)

        identity = {'relevance': relevance.hash} if relevance.hash else {}
        return source.samplers(pipeline) | {'relevance': Sampler(pick_rows, take, identity)}

    def score(matcher, images, texts, batch, seen, train):
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
