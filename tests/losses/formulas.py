"""The formula of each loss of docs/losses.md, of one query or text as loops over scalars.

Scalars are Python's floats, which are float64, or tensors of PyTorch, which have gradients. `s` are the scores of a
query, as are its other numbers of candidates; numbers of a query are scalars. Keywords are those of the loss.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special


class Row(NamedTuple):
    """Numbers of the positives and of the negatives of a query."""

    own: list
    others: list

    @property
    def all(self) -> list:
        return self.own + self.others


def scalar_function(of_floats: Callable, name: str) -> Callable:
    return lambda x: getattr(x, name)() if hasattr(x, name) else of_floats(x)


exp, log, tan = (scalar_function(getattr(math, name), name) for name in ('exp', 'log', 'tan'))
log_gamma = scalar_function(math.lgamma, 'lgamma')
digamma = scalar_function(special.digamma, 'digamma')


def hinge(s, margin, scores=None):
    """The hinge of the hardest of some scores, which are by default those of the negatives; 0 if there are none."""
    scores = s.others if scores is None else scores
    return max(0 * min(s.own), margin + max(scores) - min(s.own)) if scores else 0 * min(s.own)


def softmax(scores, temperature):
    powers = [exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


# jitm.losses.ranking


def sum_of_hinges(s, margin):
    return sum(hinge(s, margin, [other]) for other in s.others)


def mean_of_hinges(s, margin):
    return sum_of_hinges(s, margin) / len(s.others)


def max_of_hinges(s, margin):
    return hinge(s, margin)


def semi_hard_hinge(s, margin):
    return hinge(s, margin, [other for other in s.others if other < min(s.own)])


def selective_contrastive(s, margin):
    return hinge(s, margin) if max(s.others) < min(s.own) else max(s.others)


def selective_hard_negative(s, margin, epsilon):
    return (max_of_hinges if abs(max(s.others) - min(s.own)) > epsilon else mean_of_hinges)(s, margin)


def polynomial(s, margin):
    p = min(s.own)
    n = max(s.others)
    if p >= 1 - 1e-5 or n + margin <= p:
        return 0 * p
    return max(0 * p, 0.2 * p**2 - 0.7 * p + 0.5) + max(0 * n, 0.9 * n**2 - 0.4 * n + 0.03)


def adaptive_margin(s, relevance, temperature=5.0):
    positive = relevance.own[s.own.index(min(s.own))]
    rows = zip(s.others, relevance.others, strict=True)
    return sum(hinge(s, (positive - phi) / temperature, [other]) for other, phi in rows)


def matching_cross_entropy(s):
    matches = [-log(x) for x in s.own]
    mismatches = [-log(1 - x) for x in s.others]
    return (sum(matches) / len(matches) + sum(mismatches) / len(mismatches)) / 2


def softmax_contrastive(s, temperature, label_smoothing=0.0):
    losses = [-log(p) for p in softmax(s.all, temperature)]
    smooth = label_smoothing * sum(losses) / len(losses)
    return (1 - label_smoothing) * sum(losses[: len(s.own)]) / len(s.own) + smooth


def sigmoid_contrastive(s, temperature, bias):
    logits = [-score / temperature - bias for score in s.own] + [score / temperature + bias for score in s.others]
    return sum(log(1 + exp(logit)) for logit in logits)


def projection_matching(s, temperature):
    truth = [1 / len(s.own)] * len(s.own) + [0.0] * len(s.others)
    predicted = zip(softmax(s.all, temperature), truth, strict=True)
    return sum(p * log(1e-8 + p / (q + 1e-8)) for p, q in predicted)


# jitm.losses.noisy


def complementary_contrastive(s, temperature):
    probabilities = softmax(s.all, temperature)
    loss = 0
    for n in range(len(s.own), len(probabilities)):
        loss -= log(max(sum(probabilities[:n] + probabilities[n + 1 :]), 1e-10))
    return loss


def active_complementary(s, labels, temperature, complementary_weight=5.0):
    probabilities = softmax(s.all, temperature)
    tangents = [tan(p) for p in probabilities]
    positives = len(s.own)
    complementary = sum(tangents[positives:]) / sum(tangents) ** (1 - labels)
    return -labels * log(min(probabilities[:positives])) + complementary_weight * complementary


def soft_margin(s, labels, margin):
    return hinge(s, margin * (10**labels - 1) / 9)


def evidential(s, temperature=0.1, divergence_weight=0.1):
    alphas = [exp(score / temperature) + 1 for score in s.all]
    loss = 0
    strength = sum(alphas)
    count = len(alphas)
    for n, alpha in enumerate(alphas):
        loss += (float(n < len(s.own)) - alpha / strength) ** 2
        loss += alpha * (strength - alpha) / (strength**2 * (strength + 1))
    others = alphas[len(s.own) :]
    total = sum(others) + len(s.own)
    divergence = log_gamma(total) - math.lgamma(count) - sum(map(log_gamma, others))
    return loss + divergence_weight * (divergence + sum((a - 1) * (digamma(a) - digamma(total)) for a in others))


def ladder(s, relevance, margin=0.2, thresholds=(0.63,), ladder_margins=(0.01,), ladder_weight=0.25):
    loss = hinge(s, margin)
    for threshold, ladder_margin in zip(thresholds, ladder_margins, strict=True):
        rows = list(zip(s.others, relevance.others, strict=True))
        related = [x for x, r in rows if r >= threshold]
        below = [x for x, r in rows if r < threshold]
        loss += ladder_weight * hinge(Row(s.own + related, below), ladder_margin)
    return loss


# jitm.losses.offline


def offline_triplet(s, offline_scores, online_margin=0.2, offline_margin=0.0):
    return hinge(s, online_margin) + hinge(s, offline_margin, [offline_scores])


def offline_quintuplet(
    s, offline_scores, offline_pair_scores, online_margin=0.2, offline_margin=0.0, online_weight=1.0
):
    offline = hinge(s, offline_margin, [offline_scores]) + hinge(s, offline_margin, [offline_pair_scores])
    return online_weight * hinge(s, online_margin) + offline


def adaptive_offline_quintuplet(
    s, offline_scores, offline_pair_scores, alpha=0.3, beta=1.5, weigh_by_positive=False, **keywords
):
    upper = min(s.own) if weigh_by_positive else offline_scores
    weight = beta - (upper - max(s.others)) / alpha if s.others else 0
    return offline_quintuplet(s, offline_scores, offline_pair_scores, online_weight=weight, **keywords)


def online_quintuplet(s, pairs, offline_scores, online_margin=0.2, offline_margin=0.0):
    online = sum(hinge(s, offline_margin, [pair]) / 2 for pair in pairs)
    return offline_triplet(s, offline_scores, online_margin, offline_margin) + online


def pairs_of(query, scores, negatives):
    """The scores of both pairs of the hardest negatives of a query, of the pairs that do not match."""
    across = {n: x for n, x in enumerate(scores[query]) if negatives[query, n]}
    down = {n: x for n, x in enumerate(scores[:, query]) if negatives[n, query]}
    if not across or not down:
        return []
    j = max(across, key=across.get)
    i = max(down, key=down.get)
    return [scores[pair] for pair in ((i, j), (j, i)) if negatives[pair]]


# jitm.losses.anchored and distillation


def soft(y, margin, extreme):
    """Equation 17 as printed."""
    return margin if extreme is None else 2 * margin / (1 + exp(2 / margin * (y - extreme))) - margin


def relative(s, anchor_scores, margin=0.2, extreme=None):
    """Of each negative how far it is above the anchor's, and its hinge."""
    p, a = min(zip(s.own, anchor_scores.own, strict=True))
    pairs = zip(s.others, anchor_scores.others, strict=True)
    return [(n - b, max(0 * p, soft(a - b, margin, extreme) + (a - b) - (p - n))) for n, b in pairs]


def absolute(s, anchor_scores, margin=0.2, alpha=0.5, extreme=None):
    p, a = min(zip(s.own, anchor_scores.own, strict=True))
    of_positive = max(0 * p, soft(a, alpha * margin, extreme) + a - p)
    pairs = zip(s.others, anchor_scores.others, strict=True)
    return [(n - b, of_positive + max(0 * n, soft(-b, margin - alpha * margin, extreme) + n - b)) for n, b in pairs]


def relative_sum(s, anchor_scores, **keywords):
    return sum(value for _, value in relative(s, anchor_scores, **keywords))


def relative_max(s, anchor_scores, **keywords):
    return max(relative(s, anchor_scores, **keywords))[1]


def absolute_sum(s, anchor_scores, **keywords):
    return sum(value for _, value in absolute(s, anchor_scores, **keywords))


def absolute_max(s, anchor_scores, **keywords):
    return max(absolute(s, anchor_scores, **keywords))[1]


def order_probability(scores):
    """Of the order the scores stand in: take the first of all, the second of the rest, and so on."""
    powers = [exp(score) for score in scores]
    return math.prod(power / sum(powers[n:]) for n, power in enumerate(powers))


def rank_distillation(s, anchor_scores, temperature=0.1, hard=False):
    pairs = sorted(zip(anchor_scores.all, s.all, strict=True))
    if hard:
        return -log(order_probability([-3 * score**3 for _, score in pairs[1:5]]))
    value = 0
    for order in itertools.permutations(pairs[-4:]):
        anchor = order_probability([score / temperature for score, _ in order])
        target = order_probability([score / temperature for _, score in order])
        value += anchor * log(anchor / target)
    return value


def relational_distillation(s, anchor_scores):
    distances = [abs(x - a) for x, a in zip(s.all, anchor_scores.all, strict=True)]
    return sum(d**2 / 2 if d < 1 else d - 0.5 for d in distances) / len(distances)


def unit(row):
    norm = sum(x**2 for x in row) ** 0.5
    return [x / norm for x in row]


def similarity_preserving(s, anchor_scores):
    return sum((x - a) ** 2 for x, a in zip(unit(s.all), unit(anchor_scores.all), strict=True))


def mutual_learning(s, anchor_scores, temperature=0.1):
    return self_distillation(s, anchor_scores, temperature, subtract_entropy=True)


def self_distillation(s, anchor_scores, temperature=0.1, inverse=False, subtract_entropy=False):
    target = softmax(s.all, temperature)
    anchor = softmax(anchor_scores.all, temperature)
    first, second = (target, anchor) if inverse else (anchor, target)
    entropy = -sum(p * log(p) for p in first) if subtract_entropy else 0
    return -sum(p * log(q) for p, q in zip(first, second, strict=True)) - entropy


# jitm.losses.tokens, of the logits and the label of each word that counts


def captioning(words):
    return sum(log(sum(map(exp, logits))) - logits[label] for logits, label in words)


def masked_language_modeling(words):
    return captioning(words) / len(words) if words else 0


def word_discrimination(words, match_weight):
    costs = [match_weight**label * -log(max(softmax(logits, 1)[label], 1e-10)) for logits, label in words]
    return sum(costs) / len(costs) if costs else 0


def word_correction(words):
    return word_discrimination(words, 1)


# Name in docs/losses.md -> the formula, which has the name of the loss, and the keywords of each comparison.
ONLINE = {'online_margin': 0.1, 'offline_margin': 0.3}
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
    'SAM': (adaptive_margin, {}, {'temperature': 0.5}),
    'RCL': (complementary_contrastive, {'temperature': 0.1}),
    'CRCL': (active_complementary, {'temperature': 0.1}),
    'NCR': (soft_margin, {'margin': 0.2}),
    'DECL': (evidential, {}),
    'ladder': (ladder, {}, {'thresholds': (0.3, 0.6), 'ladder_margins': (0.1, 0.05)}),
    'OffTri': (offline_triplet, {}, ONLINE),
    'OffQuin': (offline_quintuplet, {}, ONLINE),
    'OnlyOffline': (offline_quintuplet, {'online_weight': 0.0}),
    'OnlineQuin': (online_quintuplet, {}, ONLINE),
    'AdapOffQuin, AOQ': (adaptive_offline_quintuplet, {}, {'alpha': 0.5, 'beta': 1.0, **ONLINE}),
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
OF_TEXTS = {
    'captioning': (captioning, {}),
    'MLM': (masked_language_modeling, {}),
    'WoD': (word_discrimination, {'match_weight': 0.11}),
    'WoC': (word_correction, {}),
}
NEEDED = {'evidential': ('others',), 'online_quintuplet': ('own',), 'offline_triplet': ('own',)}
NEEDED |= dict.fromkeys(('offline_quintuplet', 'adaptive_offline_quintuplet'), ('own',))


def make_arrays(name: str, shape: tuple[int, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Makes the scores and the other arrays of a loss of queries: cosines, or probabilities for ITM."""
    taken = inspect.signature(OF_QUERIES[name][0]).parameters
    shapes = {'anchor_scores': shape, 'relevance': shape, 'labels': shape[:1]}
    shapes |= {'offline_scores': shape[:1], 'offline_pair_scores': shape[:1]}
    shapes = {'scores': shape} | {key: shape for key, shape in shapes.items() if key in taken}
    return {
        key: rng.uniform(0 if name == 'ITM' or key in ('labels', 'relevance') else -1, 1, shapes[key]) for key in shapes
    }


def of_queries(formula: Callable, scores, positives, negatives=None, **arrays) -> Sequence:
    """Applies a formula of one query to all of NumPy arrays or tensors; 0 without the candidates that it needs."""
    if negatives is None:
        negatives = ~positives
    values = []
    for q, row in enumerate(scores):

        def select(numbers, q=q):
            if not numbers.ndim:
                return numbers
            own = [x for x, counts in zip(numbers, positives[q], strict=True) if counts]
            return Row(own, [x for x, counts in zip(numbers, negatives[q], strict=True) if counts])

        s = select(row)
        keywords = {key: select(array[q]) for key, array in arrays.items()}
        if 'pairs' in inspect.signature(formula).parameters:
            keywords['pairs'] = pairs_of(q, scores, negatives)
        name = getattr(formula, 'func', formula).__name__
        complete = all(getattr(s, side) for side in NEEDED.get(name, ('own', 'others')))
        values.append(formula(s, **keywords) if complete else 0.0)
    return values


def of_texts(formula: Callable, logits, labels, mask) -> Sequence:
    """Applies a formula of one text to all."""
    values = []
    for text in zip(logits, labels, mask, strict=True):
        words = zip(*text, strict=True)
        values.append(formula([(list(x), label) for x, label, counts in words if counts]))
    return values
