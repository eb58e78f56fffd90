"""Retrieval metrics of similarity matrices, the best candidates, and metrics of word-level predictions. numpy only."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

RECALLS_AT = (1, 5, 10)
MATCH_THRESHOLD = 0.5  # a word is predicted to match the image if its match probability is higher


def ranks(sims: np.ndarray, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rank of the best match of every query, 0 for the first; ties count against the query.

    Args:
      sims: [I, T], every image with every text.
      image_of_text: int [T], the image of each text; every image has at least one.

    Returns:
      i2t int [I]: number of texts of other images that score at least as high as the best text of the image.
      t2i int [T]: number of other images that score at least as high as the image of the text.

    Raises:
      ValueError: If a similarity is NaN, if the shapes disagree, or if an image has no text.
    """
    images, texts = sims.shape
    if image_of_text.shape != (texts,):
        raise ValueError(f'sims {sims.shape} have {texts} texts, image_of_text {image_of_text.shape[0]}')
    if len(np.unique(image_of_text)) != images:
        raise ValueError(f'only {len(np.unique(image_of_text))} of {images} images have a text')
    if np.isnan(sims).any():
        raise ValueError(f'{np.isnan(sims).sum()} of {sims.size} similarities are NaN')
    positives = sims[image_of_text, np.arange(texts)]
    best = np.full(images, -np.inf, sims.dtype)  # best positive of each image
    np.maximum.at(best, image_of_text, positives)
    as_high = np.count_nonzero(sims >= best[:, None], axis=1)
    positives_as_high = np.bincount(image_of_text, positives >= best[image_of_text], images).astype(int)
    return as_high - positives_as_high, np.count_nonzero(sims >= positives[None], axis=0) - 1


def recalls(ranks_of_queries: np.ndarray) -> dict[str, float]:
    """Returns recall@1, 5 and 10 in percent, median and mean rank (from 1) for the ranks [Q] of one direction."""
    result = {f'recall@{k}': 100.0 * float(np.mean(ranks_of_queries < k)) for k in RECALLS_AT}
    result['median_rank'] = float(np.floor(np.median(ranks_of_queries)) + 1)
    result['mean_rank'] = float(np.mean(ranks_of_queries) + 1)
    return result


def mean_distance(sims: np.ndarray, image_of_text: np.ndarray) -> float:
    """Returns the mean similarity of positive pairs minus negative pairs (MD; Diao et al., 2024, section IV-A).

    Args:
      sims: [I, T], not normalized: the distances of models with different scales of scores are not comparable.
      image_of_text: int [T], the image of each text; its pairs with other images are negative.

    Returns:
      In the unit of the similarities; NaN if there is only one image.
    """
    images, texts = sims.shape
    positives = float(np.sum(sims[image_of_text, np.arange(texts)], dtype=np.float64))
    negatives = float(np.sum(sims, dtype=np.float64)) - positives
    return positives / texts - negatives / (sims.size - texts) if images > 1 else float('nan')


def split_into_folds(images: int, image_of_text: np.ndarray, folds: int) -> list[tuple[slice, np.ndarray]]:
    """Splits images into consecutive folds; returns the slice of the images and the rows of the texts of each.

    Raises:
      ValueError: If the images cannot be split evenly.
    """
    if images % folds:
        raise ValueError(f'{images} images cannot be split into {folds} folds of equal size')
    size = images // folds
    return [
        (slice(start, start + size), np.flatnonzero(image_of_text // size == start // size))
        for start in range(0, images, size)
    ]


def both_directions(i2t: np.ndarray, t2i: np.ndarray) -> dict[str, float]:
    """Returns `recalls` prefixed `i2t/` and `t2i/`, from the ranks of images [I] and of texts [T]."""
    ways = {'i2t': recalls(i2t), 't2i': recalls(t2i)}
    return {f'{way}/{name}': value for way, values in ways.items() for name, value in values.items()}


def mean_over_folds(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric over folds, and `rsum`, the sum of the six recalls."""
    mean = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    return mean | {'rsum': sum(value for name, value in mean.items() if 'recall@' in name)}


def retrieval_metrics(sims: np.ndarray, image_of_text: np.ndarray, folds: int = 1) -> dict[str, float]:
    """Returns the usual metrics: `recalls` prefixed `i2t/` and `t2i/`, `rsum` (the sum of recalls) and `mean_distance`.

    Args:
      sims: [I, T].
      image_of_text: int [T], in ascending order if there are several folds.
      folds: The number of consecutive parts of the images, whose metrics are averaged (5 is COCO's 1K protocol).

    Returns:
      Values by name; recalls and rsum in percent, the mean distance in the unit of the similarities.

    Raises:
      ValueError: As `ranks`, or if the images cannot be split evenly.
    """
    parts = []
    for fold, texts in split_into_folds(len(sims), image_of_text, folds):
        part = sims[fold, texts], image_of_text[texts] - fold.start
        parts.append(both_directions(*ranks(*part)) | {'mean_distance': mean_distance(*part)})
    return mean_over_folds(parts)


class Retrieved(NamedTuple):
    """The best candidates of a query.

    Attributes:
      top: Indices of the candidates with the highest scores, in descending order.
      scores: Their scores.
      correct: Which of them match the query.
      rank: The rank of the first match among all candidates; 1 is best.
    """

    top: Sequence[int]
    scores: Sequence[float]
    correct: Sequence[bool]
    rank: int


def retrieve(scores: np.ndarray, matches: np.ndarray, count: int) -> Retrieved:
    """Returns the best candidates of a query; ties count against the query.

    Args:
      scores: The scores of all candidates, [C].
      matches: Which candidates match the query, bool [C]; at least one.
      count: The number of candidates to return; all, if there are fewer.
    """
    order = np.lexsort((matches, -scores))
    top = order[:count]
    return Retrieved(top.tolist(), scores[top].tolist(), matches[top].tolist(), int(np.argmax(matches[order])) + 1)


def evenly_spaced(count: int, total: int) -> list[int]:
    """Returns `count` indices below `total`, evenly spaced from 0; all, if there are fewer."""
    count = min(count, total)
    return [n * total // count for n in range(count)]


def _percent(right: np.ndarray) -> float:
    return 100.0 * float(np.mean(right)) if right.size else float('nan')


def word_discrimination(match_prob: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Returns the accuracy of matched and mismatched words (WoD: Fan et al., 2022, section 4.4).

    A word is predicted to match if its match probability is above `MATCH_THRESHOLD`. The paper reports one number
    and does not state over which words.

    Args:
      match_prob: float [N, L], the match probability of the word at each token position.
      labels: bool [N, L], whether it matches.
      mask: bool [N, L], the token positions to evaluate.

    Returns:
      Percent: `overall`, for `matched` and `mismatched` words, and `balanced`, the mean of both; NaN where there are no
      such words.
    """
    right = (match_prob > MATCH_THRESHOLD) == labels
    matched = _percent(right[mask & labels])
    mismatched = _percent(right[mask & ~labels])
    return {
        'overall': _percent(right[mask]),
        'matched': matched,
        'mismatched': mismatched,
        'balanced': (matched + mismatched) / 2,
    }


def word_correction(
    corrections: np.ndarray, originals: np.ndarray, replaced: np.ndarray, mask: np.ndarray
) -> dict[str, float]:
    """Returns the accuracy of corrections (WoC; Fan et al., 2022, section 4.4, reports one of these numbers).

    Args:
      corrections: int [N, L], the predicted original word at each token position.
      originals: int [N, L], the original word.
      replaced: bool [N, L], the positions of replaced words.
      mask: bool [N, L], the token positions to evaluate.

    Returns:
      Percent: `replaced` of the replaced words, `all` of all words; NaN without such words.
    """
    right = corrections == originals
    return {'replaced': _percent(right[mask & replaced]), 'all': _percent(right[mask])}


def caption_discrimination(scores: np.ndarray, perturbed: np.ndarray, owners: np.ndarray) -> dict[str, float]:
    """Returns how often a caption scores above its perturbed captions (Fan et al., 2022, table 4); ties count against.

    Args:
      scores: [T], the score of each caption with its image.
      perturbed: [N], the score of each perturbed caption with the same image.
      owners: int [N], the caption of each perturbed caption.

    Returns:
      Percent: `pairwise`, of the N perturbed captions that score below their caption, and `hardest`, of the captions
      with perturbed captions that score above all of them.
    """
    above = scores[owners] > perturbed
    lost = np.bincount(owners, ~above)
    return {'pairwise': _percent(above), 'hardest': _percent(lost[np.unique(owners)] == 0)}


def pseudo_perplexity(log_likelihoods: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Returns exp of the mean negative log-likelihood of words, each predicted with only itself masked.

    This is not the perplexity in table 3 of Fan et al. (2022), which GPT-2 computes.

    Args:
      log_likelihoods: [N, L], in nats.
      mask: bool [N, L], the token positions to evaluate.

    Returns:
      `caption`, the mean over the captions with words, and `corpus`, over all words together.
    """
    total = np.sum(np.where(mask, -log_likelihoods, 0.0), axis=1, dtype=np.float64)
    count = mask.sum(axis=1)
    nonempty = count > 0
    return {
        'caption': float(np.mean(np.exp(total[nonempty] / count[nonempty]))),
        'corpus': float(np.exp(total.sum() / count.sum())),
    }


def table(metrics: dict[str, float]) -> str:
    """Formats the metrics in the usual table, with the mean distance if given."""
    rows = ['               R@1    R@5   R@10  median rank  mean rank']
    for direction, label in (('i2t', 'image to text'), ('t2i', 'text to image')):
        recall = ' '.join(f'{metrics[f"{direction}/recall@{k}"]:6.1f}' for k in RECALLS_AT)
        median = metrics[f'{direction}/median_rank']
        mean = metrics[f'{direction}/mean_rank']
        rows.append(f'{label} {recall} {median:12.1f} {mean:10.1f}')
    rows.append(f'rsum {metrics["rsum"]:.1f}')
    if 'mean_distance' in metrics:
        meaning = 'mean distance: the mean score of matching pairs minus that of others'
        rows.append(f'MD {metrics["mean_distance"]:.3g} ({meaning})')
    return '\n'.join(rows)
