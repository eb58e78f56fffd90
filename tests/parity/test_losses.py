"""Every loss of docs/losses.md against its formula in PyTorch in float64: values, and gradients of all scores."""

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm import losses
from tests.losses.test_docs import ROWS
from tests.parity.bounds import assert_within

torch = pytest.importorskip('torch')
F = torch.nn.functional


class Row(NamedTuple):
    """Numbers of the candidates of one query: of its positives, and of its negatives."""

    own: torch.Tensor
    others: torch.Tensor

    @property
    def all(self) -> torch.Tensor:
        return torch.cat(self)


# The formulas for one query with the scores s. Other arrays are a Row or, with one number for each query, a scalar.


def sum_of_hinges(s, margin):
    return F.relu(margin + s.others - s.own.min()).sum()


def mean_of_hinges(s, margin):
    return F.relu(margin + s.others - s.own.min()).mean()


def max_of_hinges(s, margin):
    return F.margin_ranking_loss(s.own.min(), s.others.max(), torch.tensor(1), margin)


def semi_hard_hinge(s, margin):
    easier = s.others[s.others < s.own.min()]
    return max_of_hinges(Row(s.own, easier), margin) if len(easier) else 0 * s.own.min()


def selective_contrastive(s, margin):
    return max_of_hinges(s, margin) if s.others.max() < s.own.min() else s.others.max()


def selective_hard_negative(s, margin, epsilon):
    is_hard = (s.others.max() - s.own.min()).abs() > epsilon
    return max_of_hinges(s, margin) if is_hard else mean_of_hinges(s, margin)


def polynomial(s, margin):
    p, n = s.own.min(), s.others.max()
    if p >= 1 - 1e-5 or n + margin <= p:
        return 0 * p
    return F.relu(0.2 * p**2 - 0.7 * p + 0.5) + F.relu(0.9 * n**2 - 0.4 * n + 0.03)


def adaptive_margin(s, margins):
    return F.relu(margins.others + s.others - s.own.min()).sum()


def matching_cross_entropy(s):
    matches = F.binary_cross_entropy(s.own, torch.ones_like(s.own))
    return (matches + F.binary_cross_entropy(s.others, torch.zeros_like(s.others))) / 2


def uniform_over_positives(s):
    return torch.cat([torch.full_like(s.own, 1 / len(s.own)), torch.zeros_like(s.others)])


def softmax_contrastive(s, temperature, label_smoothing=0.0):
    return F.cross_entropy(s.all / temperature, uniform_over_positives(s), label_smoothing=label_smoothing)


def sigmoid_contrastive(s, temperature, bias):
    logits, labels = s.all / temperature + bias, torch.cat([torch.ones_like(s.own), -torch.ones_like(s.others)])
    return -F.logsigmoid(labels * logits).sum()


def projection_matching(s, temperature):
    predicted = F.softmax(s.all / temperature, 0)
    return (predicted * torch.log(1e-8 + predicted / (uniform_over_positives(s) + 1e-8))).sum()


def complementary_contrastive(s, temperature, complement='log'):
    rest = (1 - F.softmax(s.all / temperature, 0)[len(s.own) :]).clamp(min=1e-10)
    losses = {'log': -rest.log(), 'tan': (1 - rest).tan(), 'abs': 1 - rest, 'exp': (-rest).exp()}
    return losses[complement].sum()


def active_complementary(s, labels, temperature, complementary_weight=5.0):
    probabilities = F.softmax(s.all / temperature, 0)
    tangents, positives = probabilities.tan(), len(s.own)
    complementary = tangents[positives:].sum() / tangents.sum() ** (1 - labels)
    return -labels * probabilities[:positives].min().log() + complementary_weight * complementary


def soft_margin(s, labels, margin):
    return F.relu(margin * (10**labels - 1) / 9 + s.others.max() - s.own.min())


def evidential(s, temperature=0.1, divergence_weight=0.1):
    evidence, truth = (s.all / temperature).exp(), torch.cat([torch.ones_like(s.own), torch.zeros_like(s.others)])
    predicted, ones = torch.distributions.Dirichlet(evidence + 1), torch.ones_like(evidence)
    wrong = torch.distributions.Dirichlet((1 - truth) * evidence + 1)
    divergence = torch.distributions.kl_divergence(wrong, torch.distributions.Dirichlet(ones))
    return (
        F.mse_loss(predicted.mean, truth, reduction='sum') + predicted.variance.sum() + divergence_weight * divergence
    )


def ladder(s, relevance, margin=0.2, threshold=0.63, ladder_margin=0.01, ladder_weight=0.25):
    above = relevance.others >= threshold
    related, below = torch.cat([s.own, s.others[above]]), s.others[~above]
    loss = max_of_hinges(s, margin)
    return loss + ladder_weight * max_of_hinges(Row(related, below), ladder_margin) if len(below) else loss


def offline_triplet(s, offline_scores, online_margin=0.2, offline_margin=0.0):
    return max_of_hinges(s, online_margin) + F.relu(offline_margin + offline_scores - s.own.min())


def offline_quintuplet(
    s, offline_scores, offline_pair_scores, online_margin=0.2, offline_margin=0.0, online_weight=1.0
):
    mined = torch.stack([offline_scores, offline_pair_scores])
    return online_weight * max_of_hinges(s, online_margin) + F.relu(offline_margin + mined - s.own.min()).sum()


def adaptive_offline_quintuplet(
    s, offline_scores, offline_pair_scores, alpha=0.3, beta=1.5, offline_margin=0.0, weigh_by_positive=False
):
    upper = s.own.min() if weigh_by_positive else offline_scores
    weight = beta - (upper - s.others.max()) / alpha
    return offline_quintuplet(
        s, offline_scores, offline_pair_scores, offline_margin=offline_margin, online_weight=weight
    )


def soft(margin, anchor, extreme):
    return margin if extreme is None else margin * torch.tanh((extreme - anchor) / margin)


def relative_hinges(s, a, margin, extreme):
    p = s.own.argmin()
    distance, anchor = s.own[p] - s.others, a.own[p] - a.others
    return F.relu(soft(margin, anchor, extreme) + anchor - distance)


def relative_sum(s, anchor_scores, margin=0.2, extreme=None):
    return relative_hinges(s, anchor_scores, margin, extreme).sum()


def relative_max(s, anchor_scores, margin=0.2, extreme=None):
    return relative_hinges(s, anchor_scores, margin, extreme)[(s.others - anchor_scores.others).argmax()]


def absolute_hinges(s, a, margin, alpha, extreme):
    p = s.own.argmin()
    of_positive = F.relu(soft(alpha * margin, a.own[p], extreme) + a.own[p] - s.own[p])
    return of_positive + F.relu(soft((1 - alpha) * margin, -a.others, extreme) + s.others - a.others)


def absolute_sum(s, anchor_scores, margin=0.2, alpha=0.5, extreme=None):
    return absolute_hinges(s, anchor_scores, margin, alpha, extreme).sum()


def absolute_max(s, anchor_scores, margin=0.2, alpha=0.5, extreme=None):
    hinges = absolute_hinges(s, anchor_scores, margin, alpha, extreme)
    return hinges[(s.others - anchor_scores.others).argmax()]


def log_probability(order):
    """Plackett and Luce: each candidate is the first of those that remain."""
    return sum(order[..., n] - order[..., n:].logsumexp(-1) for n in range(order.shape[-1]))


def rank_distillation(s, anchor_scores, temperature=0.1, hard=False):
    s, a = s.all, anchor_scores.all
    if hard:
        return -log_probability(-3 * s[a.argsort()[1:5]] ** 3)
    orders = list(itertools.permutations(a.argsort(descending=True)[:4].tolist()))
    log_s, log_a = (log_probability(x[orders,] / temperature) for x in (s, a))
    return F.kl_div(log_s, log_a, reduction='sum', log_target=True)


def relational_distillation(s, anchor_scores):
    return F.huber_loss(s.all, anchor_scores.all)


def similarity_preserving(s, anchor_scores):
    return F.mse_loss(F.normalize(s.all, dim=0), F.normalize(anchor_scores.all, dim=0), reduction='sum')


def mutual_learning(s, anchor_scores, temperature=0.1):
    log_s, log_a = (F.log_softmax(x.all / temperature, 0) for x in (s, anchor_scores))
    return F.kl_div(log_s, log_a, reduction='sum', log_target=True)


def self_distillation(s, anchor_scores, temperature=0.1, inverse=False, subtract_entropy=False):
    taught, teacher = (anchor_scores, s) if inverse else (s, anchor_scores)
    if subtract_entropy:
        return mutual_learning(taught, teacher, temperature)
    return F.cross_entropy(taught.all / temperature, F.softmax(teacher.all / temperature, 0))


# The formula for all queries, since the pairs of one are of others.


def online_quintuplet(scores, positives, negatives=None, *, offline_scores, online_margin=0.2, offline_margin=0.0):
    negatives = ~positives if negatives is None else negatives
    hardest = scores.masked_fill(~negatives, -torch.inf)
    values = []
    for q, (ibar, tbar) in enumerate(zip(hardest.argmax(0), hardest.argmax(1), strict=True)):
        s = Row(scores[q, positives[q]], scores[q, negatives[q]])
        pairs = [scores[pair] for pair in ((ibar, tbar), (tbar, ibar)) if negatives[pair]]
        hinges = [F.relu(offline_margin + pair - s.own.min()) for pair in pairs]
        values.append(offline_triplet(s, offline_scores[q], online_margin, offline_margin) + sum(hinges) / 2)
    return torch.stack(values)


# The formulas for one text: the logits of its words, their labels, and whether the mask has them.


def captioning(logits, labels, mask):
    return F.cross_entropy(logits[mask], labels[mask], reduction='sum')


def masked_language_modeling(logits, labels, mask):
    return F.cross_entropy(logits[mask], labels[mask])


def word_discrimination(logits, labels, mask, match_weight):
    probabilities = F.softmax(logits[mask], 1).clamp(min=1e-10)
    weight = probabilities.new_tensor([1, match_weight])
    return F.nll_loss(probabilities.log(), labels[mask], weight, reduction='none').mean()


def word_correction(logits, labels, mask):
    return F.nll_loss(F.softmax(logits[mask], 1).clamp(min=1e-10).log(), labels[mask])


# Name in docs/losses.md -> the formula, which has the name of the loss, and the keywords of each comparison.
OF_QUERIES = {
    'VSE0, Triplet': (sum_of_hinges, {'margin': 0.2}),
    'VSE++, MH, HN': (max_of_hinges, {'margin': 0.2}),
    'SelHN': (selective_hard_negative, {'margin': 0.2, 'epsilon': 0.5}),
    'SHN': (semi_hard_hinge, {'margin': 0.2}),
    'SCT': (selective_contrastive, {'margin': 0.2}),
    'UNITER, TAGS': (mean_of_hinges, {'margin': 0.2}),
    'ITM': (matching_cross_entropy, {}),
    'InfoNCE': (softmax_contrastive, {'temperature': 0.07}, {'temperature': 0.07, 'label_smoothing': 0.1}),
    'sigmoid': (sigmoid_contrastive, {'temperature': 0.1, 'bias': -10.0}),
    'CMPM': (projection_matching, {'temperature': 0.1}),
    'MPL': (polynomial, {'margin': 0.2}),
    'SAM': (adaptive_margin, {}),
    'RCL': (complementary_contrastive, *({'temperature': 0.1, 'complement': c} for c in ('log', 'tan', 'abs', 'exp'))),
    'CRCL': (active_complementary, {'temperature': 0.1}),
    'NCR': (soft_margin, {'margin': 0.2}),
    'DECL': (evidential, {}),
    'ladder': (ladder, {}),
    'OffTri': (offline_triplet, {}, {'online_margin': 0.1, 'offline_margin': 0.3}),
    'OffQuin': (offline_quintuplet, {}, {'online_margin': 0.1, 'offline_margin': 0.3}),
    'OnlyOffline': (offline_quintuplet, {'online_weight': 0.0}),
    'AdapOffQuin, AOQ': (adaptive_offline_quintuplet, {}, {'alpha': 0.5, 'beta': 1.0, 'offline_margin': 0.3}),
    'w/o OfflineAdap': (adaptive_offline_quintuplet, {'weigh_by_positive': True}),
    'RS': (relative_sum, {}, {'margin': 0.4, 'extreme': 2.0}),
    'RM': (relative_max, {}, {'margin': 0.4, 'extreme': 2.0}),
    'AS': (absolute_sum, {'alpha': 0.3}, {'margin': 0.4, 'extreme': 1.0}),
    'AM': (absolute_max, {'alpha': 0.3}, {'margin': 0.4, 'extreme': 1.0}),
    'DR': (rank_distillation, {}, {'hard': True}),
    'RKD': (relational_distillation, {}),
    'SP': (similarity_preserving, {}),
    'DML': (mutual_learning, {}),
    'DINO': (self_distillation, {}, {'subtract_entropy': True}),
    'DINO*': (self_distillation, {'inverse': True}, {'inverse': True, 'subtract_entropy': True}),
}
OF_PAIRS = {'OnlineQuin': (online_quintuplet, {}, {'online_margin': 0.1, 'offline_margin': 0.3})}
OF_TEXTS = {
    'captioning': (captioning, {}),
    'MLM': (masked_language_modeling, {}),
    'WoD': (word_discrimination, {'match_weight': 0.11}),
    'WoC': (word_correction, {}),
}
CASES = OF_QUERIES | OF_PAIRS | OF_TEXTS

IMAGE = np.repeat(np.arange(4), 5)  # of each caption
OF_IMAGE, SAME_IMAGE = np.arange(4)[:, None] == IMAGE, IMAGE[:, None] == IMAGE
SOME = np.random.default_rng(0).random(SAME_IMAGE.shape) < 0.5
RANKINGS = {
    'images over some captions': {'positives': OF_IMAGE, 'negatives': ~OF_IMAGE & SOME[:4]},
    'captions over images': {'positives': OF_IMAGE.T},
}
SQUARE = {
    'pairs': {'positives': np.eye(20, dtype=bool), 'negatives': ~SAME_IMAGE & SOME},
    'captions of the same images': {'positives': SAME_IMAGE},
}


def of_queries(formula: Callable, scores, positives, negatives=None, **arrays) -> torch.Tensor:
    """Applies a formula for one query to all."""
    negatives = ~positives if negatives is None else negatives

    def select(array, q):
        return array[q] if array.ndim == 1 else Row(array[q, positives[q]], array[q, negatives[q]])

    queries = [{name: select(array, q) for name, array in arrays.items()} for q in range(len(scores))]
    return torch.stack([formula(select(scores, q), **query) for q, query in enumerate(queries)])


def of_texts(formula: Callable, logits, labels, mask) -> torch.Tensor:
    """Applies a formula for one text to all."""
    return torch.stack([formula(*text) for text in zip(logits, labels, mask, strict=True)])


def make_scores(name: str, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Makes the scores and the other arrays that a formula takes: cosines, or probabilities for ITM."""
    taken, shape = inspect.signature(CASES[name][0]).parameters, masks['positives'].shape
    shapes = {'anchor_scores': shape, 'margins': shape, 'offline_scores': shape[0], 'offline_pair_scores': shape[0]}
    shapes |= {'labels': shape[0], 'relevance': shape}
    shapes = {'scores': shape} | {key: shape for key, shape in shapes.items() if key in taken}
    rng, low = np.random.default_rng(1), 0 if name == 'ITM' else -1
    lows = {'labels': 0, 'relevance': 0}
    return {key: rng.uniform(lows.get(key, low), 1, shape).astype(np.float32) for key, shape in shapes.items()}


def compare(name: str, loss: Callable, formula: Callable, arrays: Mapping, constants: Mapping) -> None:
    """Compares the values, and the gradients of their sum with random weights with respect to all arrays."""
    masks = jax.tree.map(jnp.asarray, constants)
    values, pull_back = jax.vjp(jax.jit(lambda arrays: loss(**arrays, **masks)), arrays)
    weights = np.random.default_rng(2).normal(size=values.shape).astype(np.float32)
    (gradients,) = pull_back(weights)

    tensors = {key: torch.tensor(x, dtype=torch.float64, requires_grad=True) for key, x in arrays.items()}
    expected = formula(**tensors, **{key: torch.tensor(x) for key, x in constants.items()})
    slopes = torch.autograd.grad(expected, tensors.values(), torch.tensor(weights), materialize_grads=True)
    assert_within(name, values, expected)
    for key, slope in zip(tensors, slopes, strict=True):
        assert_within(name, gradients[key], slope)


def compare_all(name: str, lift: Callable, arrays: Mapping, constants: Mapping) -> None:
    """Compares a loss for each of its keywords."""
    formula, *variants = CASES[name]
    for keywords in variants:
        loss, bound = (functools.partial(x, **keywords) for x in (getattr(losses, formula.__name__), formula))
        compare(name, loss, functools.partial(lift, bound), arrays, constants)


def test_every_loss_is_compared():
    compared = {name: formula.__name__ for name, (formula, *_) in CASES.items()}
    assert compared == {name: function.partition('.')[2] for name, function, *_ in ROWS}


@pytest.mark.parametrize('masks', RANKINGS.values(), ids=RANKINGS)
@pytest.mark.parametrize('name', OF_QUERIES)
def test_losses_of_queries(name, masks):
    compare_all(name, of_queries, make_scores(name, masks), masks)


@pytest.mark.parametrize('masks', SQUARE.values(), ids=SQUARE)
@pytest.mark.parametrize('name', OF_PAIRS)
def test_losses_of_pairs(name, masks):
    compare_all(name, operator.call, make_scores(name, masks), masks)


@pytest.mark.parametrize('name', OF_TEXTS)
def test_losses_of_texts(name):
    rng, words = np.random.default_rng(0), 2 if name == 'WoD' else 7
    logits = rng.normal(0, 12, (4, 6, words)).astype(np.float32)  # some probabilities are below 1e-10
    labels, mask = rng.integers(words, size=(4, 6)), rng.random((4, 6)) < 0.7
    compare_all(name, of_texts, {'logits': logits}, {'labels': labels, 'mask': mask})
