"""Recall of a linear canonical correlation analysis (CCA) of mean features and bags of words.

    python -m experiments cca --data_root data/f8k_precomp --json docs/evaluations.jsonl
    python -m experiments cca --data_root data/f8k_tokens --token_vectors
    python -m experiments cca --data_root data/f8k_nine_precomp --split test
    python -m experiments cca --data_root data/f8k_scaled_precomp --split test --keep headline_cca

A linear baseline. An image is the mean of its regions, a caption the set of its words, or the
mean of the vectors of its tokens. Both are centred and projected, such that the training pairs correlate most, and
compared by cosines (Hodosh, Young and Hockenmaier, 2013, use kernels). The number of directions and the ridge maximize
rsum on dev; the recalls are those of dev, or of `--split`. `--keep NAME` keeps them, with the hits on each image, for
tables that compare runs with the CCA (`experiments.catalog.read_runs`).
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from experiments import catalog, row_hits
from jitm.data import precomp
from jitm.data.splits import Split
from jitm.data.text.token_vectors import TokenVectors
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.files import replacing
from jitm.metrics import retrieval_metrics
from jitm.report.bootstrap import hits
from jitm.report.matrices import Matrix

DIMS, RIDGES = (32, 64, 128, 256), (0.01, 0.1, 1.0)


def unit(rows: np.ndarray) -> np.ndarray:
    """Returns rows of unit length."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def mean_regions(split: Split) -> np.ndarray:
    """Returns the mean of the regions of each image, `[images, features]`, of unit length."""
    regions = (split.regions[n, : split.counts[n]] for n in range(split.num_images))
    return unit(np.stack([rows.mean(0, dtype=np.float64) for rows in regions]))


def mean_tokens(vectors: TokenVectors) -> np.ndarray:
    """Returns the mean of the vectors of the tokens of each caption, `[captions, features]`, of unit length."""
    starts = np.cumsum(vectors.lengths) - vectors.lengths
    return unit(np.add.reduceat(np.asarray(vectors.values, np.float64), starts))


def bags_of_words(split: Split, vocabulary: Vocabulary) -> np.ndarray:
    """Returns which words each caption has, `[captions, words]`, of unit length."""
    bags = np.zeros((len(split.captions), len(vocabulary)))
    for n, caption in enumerate(split.captions):
        bags[n, vocabulary.encode(caption)] = 1
    return unit(bags)


def whitening(covariance: np.ndarray, ridge: float) -> np.ndarray:
    """Returns the inverse root of a covariance, whose diagonal is raised by a share of its mean."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors / np.sqrt(values.clip(0) + ridge * values.mean()) @ vectors.T


def fit(images: np.ndarray, texts: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns projections of both sides, `[features, directions]` and `[words, directions]`, highest correlation first.

    Args:
      images: Centred vectors `[pairs, features]`.
      texts: Centred vectors `[pairs, words]` of the same pairs.
      ridge: Added to the variances, as a share of their mean.
    """
    left, right = (whitening(side.T @ side / len(side), ridge) for side in (images, texts))
    u, correlations, v = np.linalg.svd(left @ (images.T @ texts / len(images)) @ right, full_matrices=False)
    return left @ u * correlations, right @ v.T * correlations


def keep(name: str, sims: np.ndarray, image_of_text: np.ndarray, source: Row) -> None:
    """Keeps the metrics and hits of scores in `catalog.CCA`, where they replace those of the same name.

    Args:
      name: The name of the control in the comments above tables.
      sims: Scores `[images, captions]`.
      image_of_text: The image of each caption, int `[captions]`.
      source: What was read, and the split.

    Raises:
      UserError: If the name is that of an experiment.
    """
    if name in catalog.EXPERIMENTS:
        raise UserError(f"'{name}' is an experiment; give --keep another name")
    matrix = Matrix(Path(name), sims, image_of_text, protocol={}, captions='')
    metrics = retrieval_metrics(sims, image_of_text)
    rows = catalog.read_cca() | {name: {**source, 'metrics': metrics, 'hits': row_hits.encode(hits(matrix))}}
    with replacing(catalog.CCA) as file:
        file.write(''.join(json.dumps({name: row}) + '\n' for name, row in rows.items()).encode())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--data_root', required=True, help='a *_precomp folder with train and dev')
    parser.add_argument('--token_vectors', action='store_true', help='captions by the vectors of jitm encode')
    parser.add_argument('--split', default='dev', help='the split that is reported')
    parser.add_argument('--keep', metavar='NAME', help='keeps the recalls and hits under this name')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Yields the recalls on a split.

    Raises:
      UserError: If the folder cannot be read.
    """
    train, dev, reported = (
        precomp.load(split, root=args.data_root, token_vectors=args.token_vectors)
        for split in ('train', 'dev', args.split)
    )
    vocabulary = Vocabulary.build(train.captions)

    def captions(split: Split) -> np.ndarray:
        return mean_tokens(split.token_vectors) if args.token_vectors else bags_of_words(split, vocabulary)

    images, texts = mean_regions(train), captions(train)
    means = images.mean(0), texts.mean(0)
    centred = (images - means[0])[train.image_of_text], texts - means[1]
    projections = {ridge: fit(*centred, ridge) for ridge in RIDGES}

    def score(split: Split, dim: int, ridge: float) -> np.ndarray:
        sides = mean_regions(split) - means[0], captions(split) - means[1]
        left, right = (
            unit(side @ projection[:, :dim]) for side, projection in zip(sides, projections[ridge], strict=True)
        )
        return (left @ right.T).astype(np.float32)

    def rsum_on_dev(settings: tuple[int, float]) -> float:
        return retrieval_metrics(score(dev, *settings), dev.image_of_text)['rsum']

    dim, ridge = max(itertools.product(DIMS, RIDGES), key=rsum_on_dev)
    sims = score(reported, dim, ridge)
    metrics = retrieval_metrics(sims, reported.image_of_text)
    if args.keep:
        source = {'data_root': args.data_root, 'split': args.split, 'token_vectors': args.token_vectors}
        keep(args.keep, sims, reported.image_of_text, source)
    yield {
        'R@1 i2t': f'{metrics["i2t/recall@1"]:.1f}',
        'R@1 t2i': f'{metrics["t2i/recall@1"]:.1f}',
        'rsum': f'{metrics["rsum"]:.1f}',
        'directions': dim,
        'ridge': ridge,
    }
