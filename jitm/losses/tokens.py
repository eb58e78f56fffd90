"""Losses of predicted words: logits, labels and a mask of N texts to one value per text, in nats.

    loss(logits, labels, mask, ...) -> [N]

Notation: y_l is the label at token position l, and P_l the softmax of the logits there. Positions outside of the mask
are ignored, even if they are NaN, and a text with an empty mask has loss 0. Means are over the positions of a text. For
a mean over several texts, such as TAGS-DC's variants of a caption, put them into one row.

"Published" is the reduction over texts, see `jitm.losses.ranking`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array

from jitm.config.arguments import checked
from jitm.errors import ArgumentError
from jitm.losses.ranking import MIN_PROBABILITY, masked_mean
from jitm.types import Labels, Logits, NotNegative, PerText, TokenMask

MAX_COST = float(-np.log(MIN_PROBABILITY))


def _costs(logits: Logits, labels: Labels, mask: TokenMask) -> Array:
    """Returns -log P_l(y_l) at each position l of the mask, 0 at the others: [N, L]."""
    logits = jnp.where(mask[..., None], logits, 0)
    labels = jnp.where(mask, labels, 0)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=2)[..., 0]
    return jnp.where(mask, jax.nn.logsumexp(logits, axis=2) - label_logits, 0)


@checked
def captioning(logits: Logits, labels: Labels, mask: TokenMask) -> PerText:
    """Captioning, text generation (VSRN, section 3.4): the sum over words l of -log P_l(y_l).

    Published: mean.
    """
    return jnp.sum(_costs(logits, labels, mask), axis=1)


@checked
def masked_language_modeling(logits: Logits, labels: Labels, mask: TokenMask) -> PerText:
    """MLM (BERT, section 3.1; Fan et al., 2022, section 2.1): the mean over masked words l of -log P_l(y_l).

    Published: mean; TAGS-DC released weights from 0.05 to 0.1.
    """
    return masked_mean(_costs(logits, labels, mask), mask)


@checked
def word_discrimination(logits: Logits, labels: Labels, mask: TokenMask, *, match_weight: NotNegative) -> PerText:
    """WoD (TAGS-DC; Fan et al., 2022, eq. 7): the mean over words l of -w_y log max(P_l(y_l), 1e-10).

    y_l is 1 for the original word, a match, and 0 for a replaced one: V = 2. The weights are w_0 = 1 and
    w_1 = `match_weight`, 0.11 in the released code and 1 in the paper; the mean is over positions, not over weights.
    The mask includes the special tokens, as in the released code.

    Released: mean, weight 5e-4.
    """
    if logits.shape[2] != 2:
        raise ArgumentError(
            'logits', f'has the shape {list(logits.shape)}; it must be [N, L, 2], of no match and match'
        )
    costs = jnp.minimum(_costs(logits, labels, mask), MAX_COST)
    return masked_mean(jnp.where(labels == 1, match_weight * costs, costs), mask)


@checked
def word_correction(logits: Logits, labels: Labels, mask: TokenMask) -> PerText:
    """WoC (TAGS-DC; Fan et al., 2022, eq. 8): the mean over words l of -log max(P_l(y_l), 1e-10).

    The logits belong to a synthetic caption, the labels are the words of the original one. The mask has the refilled
    positions in the released code, and all words in the paper.

    Released: mean over the refilled positions of all captions, weight 5e-4.
    """
    return masked_mean(jnp.minimum(_costs(logits, labels, mask), MAX_COST), mask)
