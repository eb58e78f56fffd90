"""The pairs of past steps, encoded by a member that follows the target: negatives beyond the batch (MoCo).

He et al. (2020) keep vectors of one kind, encoded by an average of the trained encoder; here both sides are kept.
"""

import functools
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from chex import ArrayTree

from jitm.devices import collectives
from jitm.errors import UserError
from jitm.models.matcher import Matcher
from jitm.training.source import OF_OTHER_ROWS, Conditions, Source, concatenate, encode_pairs, learned_inputs
from jitm.training.sources.in_batch import SAME_IMAGE, masks
from jitm.training.sources.in_chunks import check_dual
from jitm.types import Batch, Count, Ranking

# 'images' and 'texts': encodings; 'image_index' and 'text_index': int32 rows in the split, -1 where there is no pair.
Pairs = Mapping[str, ArrayTree]


def queue(same_image: Literal[*SAME_IMAGE], encoder: str, length: Count) -> Source:
    """Ranks the pairs of the global batch and of past steps, [B, B + K], all encoded by another member (MoCo).

    The gradient flows through the query, not through the candidates, which `encoder` encodes in evaluation mode. A pair
    that is still in the queue from the previous epoch is a positive, as it is in the batch. Until the queue is full,
    there are fewer negatives.

    Args:
      same_image: See `in_batch`.
      encoder: The member that encodes the candidates, such as one of the rule 'ema'.
      length: K, the number of pairs of past steps.
    """

    def init(models, trained, batch, num_pairs):
        """Returns a queue without pairs."""
        del trained, num_pairs
        model, variables = models[encoder]
        shapes = jax.eval_shape(functools.partial(encode, model), variables, batch)
        rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype), shapes)
        return {'queue': rows | {key: jnp.full(length, -1) for key in ('image_index', 'text_index')}}

    def look(view, keys):
        """Returns the pairs of the global batch, then the pairs of the queue, the same for all models."""
        for name in keys:
            check_dual(view.models[name][0], 'queue')
        pairs = collectives.all_gather(encode(*view.models[encoder], view.batch))
        return dict.fromkeys(keys, concatenate(pairs, view.memory['queue']))

    def remember(memory, seen, rankings):
        """Keeps the first pairs, which are the latest."""
        del rankings
        return {**memory, 'queue': jax.tree.map(lambda x: x[:length], next(iter(seen.values())))}

    def score(matcher, images, texts, batch, seen, train):
        """Scores this device's queries with the candidates."""
        if not train:
            return {}, {}
        query_dim = images.shape[1]
        candidate_dim = seen['images'].shape[1]
        if query_dim != candidate_dim:
            raise UserError(
                f"config key 'candidates.encoder' is '{encoder}', whose vectors have {candidate_dim} dimensions, but "
                f'those of a model that trains have {query_dim}: give both the same model.embed_dim'
            )
        scores = {'i2t': matcher.similarity(images, seen['texts']), 't2i': matcher.similarity(seen['images'], texts).T}
        scores, *queries = collectives.gather_results((scores, batch.text_index, batch.image_index))
        masks_of_pairs = masks(queries, (seen['text_index'], seen['image_index']), same_image)
        positives, negatives = (mask & (seen['image_index'] >= 0) for mask in masks_of_pairs)
        learned = learned_inputs(matcher)
        return {way: Ranking(rows, positives, negatives, learned) for way, rows in scores.items()}, {}

    return Source(score, look, init, remember, conditions=Conditions(OF_OTHER_ROWS, members=('candidates.encoder',)))


def encode(model: Matcher, variables: ArrayTree, batch: Batch) -> Pairs:
    """Encodes the pairs of a batch in evaluation mode, with their rows in the split."""
    images, texts = model.apply(variables, method=lambda matcher: encode_pairs(matcher, batch))
    return {'images': images, 'texts': texts, 'image_index': batch.image_index, 'text_index': batch.text_index}
