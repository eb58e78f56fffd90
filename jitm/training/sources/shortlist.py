"""The hardest of many candidates: all are scored without gradient, the chosen ones again with it."""

import einops
import jax
import jax.numpy as jnp
import numpy as np
from chex import Array

from jitm.data.pipeline import Sampler, generator
from jitm.devices import collectives, parallel
from jitm.errors import ArgumentError, UserError
from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import DIRECTIONS
from jitm.training.source import OF_OTHER_ROWS, Conditions, Context, Scored, Source, concatenate, each, encode_pairs
from jitm.types import Batch, Count, Index, Ranking

STREAM = 2  # separates these random numbers from other sources' numbers
Chosen = dict[str, tuple[Array, Array]]  # direction -> rows of the candidates, and which of them are real


def shortlist(num_extra: Index, num_hard: Count, *, context: Context) -> Source:
    """Ranks the hardest of many candidates, [B, 1 + H]: all are scored without gradient, the chosen ones again with it.

    This is how UNITER trains with hard negatives (Chen et al., 2020b, released code): 399 random candidates, 31 of
    them kept. There every query samples its own candidates; here the queries of a step share the global batch and P
    extra pairs.

    Args:
      num_extra: P, the number of extra pairs of a step, which are not in its batch.
      num_hard: H, the number of candidates that each query keeps.
      context: The rest of the plan.
    """
    candidates = context.batch_size + num_extra - 1
    if num_hard > candidates:
        raise ArgumentError('num_hard', f'is {num_hard}, but a query has {candidates} candidates')

    def samplers(pipeline):
        parallel.check_batch_size(num_extra, "config key 'candidates.num_extra'")
        texts = pipeline.split.num_texts
        available = texts - pipeline.batch_size
        if num_extra > available:
            key = "config key 'candidates.num_extra'"
            raise UserError(f'{key} is {num_extra}, but there are {available} texts for training outside of a batch')

        def pick(step, rows):
            pool = np.delete(np.arange(texts), rows)
            extra = generator(pipeline.seed, step, stream=STREAM).choice(pool, num_extra, replace=False)
            return extra, pipeline.tokens.lengths[extra]

        def take(extra, part):
            extra = part.cut(extra)
            images = pipeline.split.image_of_text[extra]
            return part.pairs(images, extra), images

        return {'shortlist': Sampler(pick, take)} if num_extra else {}

    def choose(view, name, key):
        """Finds the hardest candidates of this device's queries among all of the step, in evaluation mode.

        Returns direction -> int [B, H], rows of `_all_candidates`, and bool [B, H], which of them are real. H is
        smaller in a batch with fewer candidates, such as the last one of an epoch.
        """
        del key
        batch = view.batch
        model, variables = view.models[name]

        def choose_with(matcher):
            # Score all candidates of the step for this device's queries.
            images, texts = encode_pairs(matcher, batch)
            (all_images, all_texts), index = _all_candidates(matcher, images, texts, batch, train=False)
            negatives = batch.image_index[:, None] != index
            scores = {'i2t': matcher.similarity(images, all_texts), 't2i': matcher.similarity(all_images, texts).T}
            # Keep the negatives with the highest scores.
            chosen = {}
            for direction, rows in scores.items():
                values, rows = jax.lax.top_k(jnp.where(negatives, rows, -jnp.inf), min(num_hard, rows.shape[1]))
                chosen[direction] = rows, jnp.isfinite(values)
            return chosen

        return model.apply(variables, method=choose_with)

    accepts = {'data.token_vectors'} if num_extra else OF_OTHER_ROWS
    return Source(_score, each(choose), samplers=samplers, conditions=Conditions(accepts))


def _score(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: Chosen | None, train: bool
) -> Scored:
    """Scores the matching pairs and the chosen negatives."""
    if not train:
        return {}, {}
    (all_images, all_texts), _ = _all_candidates(matcher, images, texts, batch, train)

    def pairs(direction, queries, positives, candidates):
        """Returns each query repeated, [Q, 1 + H, ...], with its match and then its negatives."""
        index, _ = seen[direction]
        negatives = jax.tree.map(lambda x: x[index], candidates)
        listed = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], axis=1), positives, negatives)
        return jax.tree.map(lambda x: jnp.repeat(x[:, None], 1 + index.shape[1], axis=1), queries), listed

    # Both directions are scored together, which compiles the model once.
    directions = pairs('i2t', images, texts, all_texts), pairs('t2i', texts, images, all_images)[::-1]
    listed = jax.tree.map(lambda *x: einops.rearrange([*x], 'd q c ... -> (d q c) ...'), *directions)
    scores = matcher.similarity_pairwise(*listed, train).reshape(len(directions), len(batch.image_index), -1)
    scored = {direction: (rows, seen[direction][1]) for direction, rows in zip(DIRECTIONS, scores, strict=True)}
    scored = collectives.gather_results(scored)
    return {direction: Ranking.from_list(rows, valid) for direction, (rows, valid) in scored.items()}, {}


def _all_candidates(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, train: bool
) -> tuple[tuple[Encoding, Encoding], Array]:
    """Returns all images and texts of a step, encoded, and the rows of the images in their split.

    Each device has its part of the global batch and of the extra pairs.
    """
    candidates = (images, texts), batch.image_index
    if 'shortlist' in batch.drawn:
        extra, index = batch.drawn['shortlist']
        candidates = concatenate(candidates, (encode_pairs(matcher, extra, train), index))
    return collectives.all_gather(candidates)
