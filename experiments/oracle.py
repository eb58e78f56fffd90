"""Mines negatives of scenes with runs, and writes the lists again without the pairs that are true.

    python -m experiments flickr8k scenes --small                    # trains the model that mines
    python -m experiments oracle runs/flickr8k_small/scenes_max_s0   # writes `mined` and `false` below its run
    python -m experiments flickr8k oracle --small                    # trains with both lists

A caption of the scenes may be true of other pictures than its own; the grammar knows of which.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from jitm import metrics
from jitm.commands import cli
from jitm.data.pairs import mined_lists
from jitm.data.scenes import SceneSplit, Statement, holds
from jitm.errors import UserError
from jitm.runs.run import load_run, read_split

TOP_H = {'i2t': 1000, 't2i': 200}  # the lengths of the lists without true pairs
MINED = {'texts': 1500, 'images': 300}
SHARES_AT = (1, 10, 100)


def true_pairs(split: SceneSplit, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Returns whether captions are true of images.

    Args:
      split: The scenes.
      images: int, rows of images.
      texts: int, rows of captions; broadcast against the images.

    Returns:
      bool, in the shape of both.
    """
    images, texts = np.broadcast_arrays(images, texts)
    totals = np.array([len(graph.objects) for graph in split.graphs])
    phrases = {phrase: n for n, phrase in enumerate({p for s in split.statements for p in s.phrases})}
    fits = [[holds(Statement((phrase,)), graph) for graph in split.graphs] for phrase in phrases]
    fits = np.array([*fits, np.ones_like(totals)], bool)  # the last row is that of a missing phrase
    longest = max(len(statement.phrases) for statement in split.statements)
    mentioned = np.full((split.num_texts, longest), len(phrases))
    for text, statement in enumerate(split.statements):
        mentioned[text, : len(statement.phrases)] = [phrases[phrase] for phrase in statement.phrases]
    totals_of_texts = np.array([statement.total or 0 for statement in split.statements])
    true = fits[mentioned[texts], images[..., None]].all(-1)
    true &= (totals_of_texts[texts] == 0) | (totals_of_texts[texts] == totals[images])
    for place in zip(*np.nonzero(true), strict=True):
        true[place] = holds(split.statements[texts[place]], split.graphs[images[place]])
    return true


def without(lists: np.ndarray, left_out: np.ndarray, length: int) -> np.ndarray:
    """Returns the first items of each row that are not left out; a row with fewer repeats them.

    Args:
      lists: int [Q, H], the hardest negatives first.
      left_out: bool [Q, H].
      length: The number of items of a row of the result.

    Raises:
      UserError: If a row has no other item.
    """
    counts = np.count_nonzero(~left_out, axis=1)
    if not counts.all():
        raise UserError(f'{np.count_nonzero(counts == 0)} lists have true pairs only: mine longer ones')
    order = np.argsort(left_out, axis=1, kind='stable')
    places = np.take_along_axis(order, np.arange(length) % counts[:, None], axis=1)
    return np.take_along_axis(lists, places, axis=1)


def rsum_among_false(sims: np.ndarray, split: SceneSplit) -> float:
    """Returns rsum where the candidates of a query are its own pairs and those that are false.

    Args:
      sims: [I, T], each image with each caption.
      split: The scenes.
    """
    annotated = split.image_of_text == np.arange(split.num_images)[:, None]
    unannotated = true_pairs(split, *np.indices(sims.shape)) & ~annotated
    ranks = metrics.ranks(np.where(unannotated, -np.inf, sims), split.image_of_text)
    return metrics.mean_over_folds([metrics.both_directions(*ranks)])['rsum']


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('runs', nargs='+', type=Path, help='run directories, trained on scenes')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Writes the lists of each run, and yields the percentages of the hardest negatives that are true.

    Raises:
      UserError: If a run was not trained on scenes, or does not mine.
    """
    for folder in args.runs:
        split = read_split([load_run(folder)], 'train')
        if not isinstance(split, SceneSplit):
            raise UserError(f'{folder} was trained on {split.name}; only scenes have captions of known truth')
        argv = ['mine', '--workdir', folder, '--out', folder / 'mined']
        argv += [word for side, length in MINED.items() for word in (f'--top_h_{side}', length)]
        if cli.main(list(map(str, argv))):
            raise UserError(f'{folder} does not mine')
        mined = mined_lists.load(folder / 'mined', split)
        images, texts = (np.arange(number)[:, None] for number in (split.num_images, split.num_texts))
        true = {'i2t': true_pairs(split, images, mined.i2t), 't2i': true_pairs(split, mined.t2i, texts)}
        negatives = {way: without(getattr(mined, way), true[way], TOP_H[way]) for way in true}
        (folder / 'false').mkdir(exist_ok=True)
        for way, lists in negatives.items():
            np.save(folder / 'false' / f'{way}_train.npy', lists)
            shares = {f'% true, hardest {h}': 100 * true[way][:, :h].mean() for h in SHARES_AT}
            yield {'run': folder.name, 'direction': way} | shares
