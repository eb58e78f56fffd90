"""Compares the negatives that an anchor selects with the hardest ones, by the captions of their images.

    python -m experiments flickr8k vsepp_rm_oss --small --seeds 0 1 2 --again
    python -m experiments selected vsepp_rm_oss --small --json docs/evaluations.jsonl

Batches of the training data have one random caption of each image. For each image and each caption, max of hinges
takes the negative with the highest score s_n of the target, RM the one with the highest s_n - a_n, where a_n is the
score of the anchor. CIDEr compares a caption with the captions of an image. A negative with a CIDEr above the median of
the annotated pairs is probably a match, too.
"""

import argparse
import collections
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.results import Row
from experiments import catalog
from jitm.data.pairs import cider
from jitm.data.splits import Split
from jitm.inference.scoring import make_scorer
from jitm.pages.tables import mean_and_deviation
from jitm.runs.run import load_run, read_split

SELECTIONS = {'random': 'a random one', 'hardest': 'highest s_n', 'anchor': 'highest s_n - a_n'}


def select(target: np.ndarray, anchor: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns the negative of each query, by the name of the selection.

    Args:
      target: Scores s [Q, Q] of queries with candidates; those of pairs are on the diagonal.
      anchor: Scores a of another model.
      rng: The generator of the random negatives.

    Returns:
      int [Q], for each of `SELECTIONS`.
    """
    values = {'random': rng.random(target.shape), 'hardest': target, 'anchor': target - anchor}
    return {name: np.where(np.eye(len(target)), -np.inf, value).argmax(axis=1) for name, value in values.items()}


def batches(split: Split, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields the texts of batches in random order, one text of each image; images that fill no batch are left out."""
    order = rng.permutation(split.num_texts)
    _, first = np.unique(split.image_of_text[order], return_index=True)
    texts = rng.permutation(order[first])
    yield from texts[: len(texts) // size * size].reshape(-1, size)


def compare(
    target: np.ndarray, anchor: np.ndarray, relevance: cider.Relevance, split: Split, size: int, seed: int
) -> Mapping[str, Mapping[str, float]]:
    """Compares the selections in the batches of a split, for images and for captions as queries.

    Args:
      target: Scores [I, T] of the model that is trained.
      anchor: Scores [I, T] of its anchor.
      relevance: CIDEr of the texts of the split.
      split: The training data.
      size: The number of pairs of a batch.
      seed: The seed of the batches.

    Returns:
      Selection -> column -> value.
    """
    rng, values_of = np.random.default_rng(seed), collections.defaultdict(list)
    for texts in batches(split, size, rng):
        images, rows = split.image_of_text[texts], np.arange(size)
        phi = relevance.phi(images, texts)
        s, a = target[np.ix_(images, texts)], anchor[np.ix_(images, texts)]
        values_of['own'].append(phi[rows, rows])
        for way in (np.asarray, np.transpose):  # images as queries, and captions
            selected = select(way(s), way(a), rng)
            for name, negative in selected.items():
                values_of[name].append(way(phi)[rows, negative])
                values_of[name, 'violates'].append(way(s)[rows, negative] > s[rows, rows])
                values_of[name, 'same'].append(negative == selected['hardest'])
    values = {name: np.concatenate(parts) for name, parts in values_of.items()}
    return {
        name: {
            'CIDEr': values[name].mean(),
            '% probable matches': 100 * (values[name] >= np.median(values['own'])).mean(),
            '% above their pair': 100 * values[name, 'violates'].mean(),
            '% the hardest': 100 * values[name, 'same'].mean(),
        }
        for name in SELECTIONS
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        'name', metavar='NAME', type=catalog.known, help='an experiment of which runs have a target and an anchor'
    )
    catalog.add_run_flags(parser)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Yields the means of each selection over the runs.

    Raises:
      UserError: If a run has no anchor, or its data cannot be read.
    """
    by_run = []
    for seed in args.seeds:
        folder = catalog.directory(catalog.folder_of(args), args.name, seed)
        members = [load_run(folder, member=member) for member in ('target', 'anchor')]
        split = read_split(members, 'train')
        scores = (make_scorer(member, split).score_together() for member in members)
        size = members[0].config['batch_size']
        by_run.append(compare(*scores, cider.from_captions(split), split, size, seed))
    for name, label in SELECTIONS.items():
        columns = {column: [means[name][column] for means in by_run] for column in by_run[0][name]}
        yield {'negative': label} | {
            column: mean_and_deviation(values, '.2f' if column == 'CIDEr' else '.1f')
            for column, values in columns.items()
        }
