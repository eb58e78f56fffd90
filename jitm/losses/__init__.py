"""Losses: pure functions of plain arrays, usable without the rest of the library.

Every loss is in one of the modules and re-exported here: `jitm.losses.max_of_hinges` is
`jitm.losses.ranking.max_of_hinges`, which a config names `ranking.max_of_hinges`.

A loss of rankings reads scores [Q, C] and masks [Q, C] of the positives and, optionally, of the negatives of each
query. A query without a positive has loss 0. Arrays may be of numpy, JAX or torch, or lists; masks may have 0 and 1,
unless they are traced. Numbers are float32 or bfloat16; float16 is too coarse for exponentials and logarithms. An
argument of another shape, type or range is a ValueError that names it.
"""

from jitm.errors import did_you_mean, stated_names
from jitm.losses.anchored import absolute_max, absolute_sum, relative_max, relative_sum
from jitm.losses.distillation import (
    mutual_learning,
    rank_distillation,
    relational_distillation,
    self_distillation,
    similarity_preserving,
)
from jitm.losses.noisy import active_complementary, complementary_contrastive, evidential, ladder, soft_margin
from jitm.losses.offline import adaptive_offline_quintuplet, offline_quintuplet, offline_triplet, online_quintuplet
from jitm.losses.ranking import (
    adaptive_margin,
    matching_cross_entropy,
    max_of_hinges,
    mean_of_hinges,
    polynomial,
    projection_matching,
    selective_contrastive,
    selective_hard_negative,
    semi_hard_hinge,
    sigmoid_contrastive,
    softmax_contrastive,
    sum_of_hinges,
)
from jitm.losses.tokens import captioning, masked_language_modeling, word_correction, word_discrimination

__all__ = [
    'absolute_max',
    'absolute_sum',
    'active_complementary',
    'adaptive_margin',
    'adaptive_offline_quintuplet',
    'captioning',
    'complementary_contrastive',
    'evidential',
    'ladder',
    'masked_language_modeling',
    'matching_cross_entropy',
    'max_of_hinges',
    'mean_of_hinges',
    'mutual_learning',
    'offline_quintuplet',
    'offline_triplet',
    'online_quintuplet',
    'polynomial',
    'projection_matching',
    'rank_distillation',
    'relational_distillation',
    'relative_max',
    'relative_sum',
    'selective_contrastive',
    'selective_hard_negative',
    'self_distillation',
    'semi_hard_hinge',
    'sigmoid_contrastive',
    'similarity_preserving',
    'soft_margin',
    'softmax_contrastive',
    'sum_of_hinges',
    'word_correction',
    'word_discrimination',
]


def __getattr__(name: str) -> object:
    """Suggests a loss for an unknown name, also by a name in its docstring, such as `infonce`."""
    papers = stated_names({loss: globals()[loss] for loss in __all__})
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}{did_you_mean(name.lower(), __all__, papers)}')
