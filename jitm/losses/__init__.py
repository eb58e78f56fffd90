"""Losses: pure functions of plain arrays, usable without the rest of the library.

Every loss is in one of the modules and re-exported here: `jitm.losses.max_of_hinges` is
`jitm.losses.ranking.max_of_hinges`, which a config names `ranking.max_of_hinges`.
"""

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
