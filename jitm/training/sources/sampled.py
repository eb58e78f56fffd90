"""One random negative for each pair (OSCAR: Li et al., 2020)."""

import numpy as np

from jitm.data.pipeline import Pipeline, Sampler, generator
from jitm.devices import collectives
from jitm.models.matcher import Encoding, Matcher
from jitm.training.source import Conditions, Scored, Source, concatenate, encode_pairs
from jitm.training.sources.in_batch import on_training_scale
from jitm.types import Batch, Ranking

STREAM = 4  # separates these random numbers from other sources' numbers


def sampled() -> Source:
    """Ranks the match of one query of each pair above one random negative [B, 2] (OSCAR: Li et al., 2020).

    With equal probability, the text or the image of a pair is replaced by one of another image, as in the released
    code. The query is the image if the text was replaced, otherwise the text. The other query has no negative and a
    loss of 0.
    """
    return Source(
        _score, samplers=_samplers, conditions=Conditions(accepts=('members.*.learn_from', 'data.token_vectors'))
    )


def _samplers(pipeline: Pipeline) -> dict[str, Sampler]:
    """Returns the sampler of a mismatched pair for each text of a batch."""
    split = pipeline.split

    def pick(step, rows):
        """Returns images and texts of the pairs int64 [B], and whether the text was replaced bool [B]."""
        rng = generator(pipeline.seed, step, stream=STREAM)
        matching = split.image_of_text[rows]
        replaced = rng.random(len(rows)) < 0.5
        images = rng.integers(split.num_images - 1, size=len(rows))
        images += images >= matching
        texts = np.where(replaced, split.sample_texts(images, rng), rows)
        return (np.where(replaced, matching, images), texts, replaced), pipeline.tokens.lengths[texts]

    def take(picked, part):
        images, texts, replaced = map(part.cut, picked)
        return part.pairs(images, texts), replaced

    return {'sampled': Sampler(pick, take)}


def _score(matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: None, train: bool) -> Scored:
    del seen
    pairs, text_replaced = batch.drawn['sampled']
    pairs = concatenate((images, texts), encode_pairs(matcher, pairs, train))
    scores = on_training_scale(matcher.similarity_pairwise, matcher, *pairs, train).reshape(2, -1).T
    scores, text_replaced = collectives.gather_results((scores, text_replaced[:, None]))
    return {'i2t': Ranking.from_list(scores, text_replaced), 't2i': Ranking.from_list(scores, ~text_replaced)}, {}
