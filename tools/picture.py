"""Draws the picture of README: where words of a caption look, and the captions that SCAN finds for the photo.

    jitm eval --workdir runs/tutorial_scan --data_root data/own_tokens --split test --explain 37 --save_sims
    python -m tools.picture runs/tutorial_scan/eval/test_own_tokens-* --data data/own_tokens --out docs/picture.jpg

The run and the data are those of docs/tutorial.md. The photos are successes, chosen by hand.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

PHOTOS = Path('docs/cc_photos/test')
ROWS = {  # photo -> words of its caption
    '000000214753.jpg': ('horses', 'beach'),
    '000000405279.jpg': ('flying', 'water'),
}
CAPTIONS = 3
ORANGE = 1.0, 0.45, 0.0
MARKS = {True: '\N{CHECK MARK}', False: '\N{MULTIPLICATION X}'}


def overlay(weights: Sequence[float]) -> np.ndarray:
    """Returns a square grid in orange, `[side, side, 4]`, with an opacity from 0 to 0.75 for the highest weight."""
    side = round(len(weights) ** 0.5)
    grid = np.reshape(weights, (side, side))
    opacity = 0.75 * (grid - grid.min()) / np.ptp(grid)
    return np.concatenate([np.broadcast_to(ORANGE, (side, side, 3)), opacity[..., None]], axis=-1)


def best_captions(scores: np.ndarray, captions: Sequence[str], right: np.ndarray) -> str:
    """Returns the captions of the highest scores, a line each, with a tick if they belong to the photo."""
    best = np.argsort(-scores)[:CAPTIONS]
    return '\n'.join(f'{MARKS[bool(right[n])]}  {captions[n]}' for n in best)


def show_word(panel: Axes, photo: np.ndarray, pair: Mapping[str, Any], word: str) -> None:
    """Shows where a word of a caption looks on a photo."""
    height, width, _ = photo.shape
    weights = pair['attention']['t2i'][pair['words'].index(word)]
    panel.imshow(photo)
    panel.imshow(overlay(weights), extent=(0, width, height, 0))
    panel.set_title(word, fontsize=11)


def draw(folder: Path, data: Path) -> pyplot.Figure:
    """Draws the photos of `ROWS`, the maps of their words, and their captions."""
    pairs = {
        pair['true_image_id']: pair for pair in json.loads((folder / 'explain' / 'explain.json').read_text())['pairs']
    }
    names = (data / 'test_ids.txt').read_text().split()
    captions = (data / 'test_caps.txt').read_text().splitlines()
    sims, image_of_text = np.load(folder / 'sims.npy'), np.load(data / 'test_image_of_text.npy')
    size = 10.5, 2 * len(ROWS)
    figure, rows = pyplot.subplots(len(ROWS), 4, figsize=size, layout='constrained', width_ratios=[1, 1, 1, 2.4])
    for panels, (name, words) in zip(rows, ROWS.items(), strict=True):
        first, *maps, text = panels
        photo, pair, row = pyplot.imread(PHOTOS / name), pairs[name], names.index(name)
        first.imshow(photo)
        for panel, word in zip(maps, words, strict=True):
            show_word(panel, photo, pair, word)
        text.text(
            0, 0.5, best_captions(sims[row], captions, image_of_text == row), va='center', linespacing=2, wrap=True
        )
        for panel in panels:
            panel.set_axis_off()
    return figure


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='what jitm eval wrote')
    parser.add_argument('--data', type=Path, required=True, help='the folder of features that it read')
    parser.add_argument('--out', type=Path, required=True, help='the picture')
    args = parser.parse_args()
    draw(args.folder, args.data).savefig(args.out, dpi=100)


if __name__ == '__main__':
    main()
