"""Word-level outputs of a model: attention as a page, and mismatched words as lines and as a page.

The words and their corrections are shown as for TAGS-DC (Fan et al., 2022, figure 3).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitm.files.outputs import OutputFolder
from jitm.metrics import MATCH_THRESHOLD
from jitm.pages.pictures import SMALL, png, uri
from jitm.pages.render import render
from jitm.report import attention_maps

FILES = 'explain/explain.json', 'explain/index.html'
EXPLANATION = (
    'The number below a word is the predicted probability, in percent, that it does not match the image. Words with at '
    f'least {100 * (1 - MATCH_THRESHOLD):.0f} are followed by the predicted correction. Words that were perturbed are '
    'underlined.'
)
MISMATCH_THRESHOLD = 1 - MATCH_THRESHOLD  # a word with at least this mismatch probability is mismatched

Picture = Callable[[int], np.ndarray | None]  # returns the pixels of an image, uint8 [H, W, 3], see `pixels_of`


class _Word(NamedTuple):
    text: str
    mismatch: float
    correction: str  # '' for a matched word
    is_changed: bool


def _words(pair: Mapping[str, Any]) -> Iterator[_Word]:
    """Yields the words of a pair without the special tokens at both ends."""
    replaced = pair.get('changed', [False] * len(pair['words']))
    tokens = zip(pair['words'], pair['mismatch'], pair['corrections'], replaced, strict=True)
    for word, mismatch, correction, is_changed in list(tokens)[1:-1]:
        yield _Word(word, mismatch, correction if mismatch >= MISMATCH_THRESHOLD else '', is_changed)


def lines(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Returns pairs of `explain.json` for a terminal: caption, verdict, and the mismatched words if the model has any.

    Args:
      pairs: Some of the `pairs`; a mismatched word has its mismatch probability in percent and its correction.
    """
    texts = []
    for pair in pairs:
        mismatched = [word for word in _words(pair) if word.correction]
        words = [f'{word.text} ({100 * word.mismatch:.0f} %, {word.correction})' for word in mismatched]
        texts += [pair['caption'], pair['verdict'], f'mismatched: {", ".join(words) or "none"}', '']
    return '\n'.join(texts)


def page(report: Mapping[str, Any], picture: Picture) -> str:
    """Returns a self-contained HTML page of all pairs.

    Args:
      report: The content of `explain.json`.
      picture: See `Picture`.

    Returns:
      The page; each word on a shade of red, with its mismatch probability in percent and, if mismatched, its correction
      below. If the first image is wrong, the words are also shown for the right one.
    """
    pairs = []
    for pair in report['pairs']:
        pairs.append(shown(pair, picture(pair['image'])))
        if 'on_true_image' in pair:
            of_true_image = {'image_id': pair['true_image_id'], 'verdict': f'the right image, at rank {pair["rank"]}'}
            true_pair = pair | pair['on_true_image'] | of_true_image
            pairs.append(shown(true_pair, picture(pair['true_image'])))
    title = f'Mismatched words: {report["data"]}'
    return render('words.html', **report | {'title': title, 'explanation': EXPLANATION, 'pairs': pairs})


def shown(pair: Mapping[str, Any], pixels: np.ndarray | None) -> dict[str, Any]:
    """Returns one pair for the template `mismatches.html`.

    Args:
      pair: One of the `pairs` of `explain.json`.
      pixels: Its image, uint8 [H, W, 3] or None.
    """
    picture = {}
    if pixels is not None:
        picture = {'name': pair['image_id'], 'address': uri(png(pixels), 'png'), 'small': len(pixels) < SMALL}
    return {'caption': pair['caption'], 'verdict': pair['verdict'], 'picture': picture, 'words': list(_words(pair))}


def attention_page(report: Mapping[str, Any], picture: Picture) -> str:
    """Returns a self-contained HTML page of all pairs: the images found for a caption, and where each word attends.

    Words are shown on the first image and, if that is wrong, on the right one.

    Args:
      report: The content of `explain.json`.
      picture: See `Picture`.
    """
    pairs = []
    for pair in report['pairs']:
        pixels = [picture(hit['image']) for hit in attention_maps.shown_images(pair)]
        first = attention_maps.shown(pair, pixels[0])
        maps = [('', first)]
        if 'on_true_image' in pair:
            on_true_image = attention_maps.shown(pair | pair['on_true_image'], picture(pair['true_image']))
            maps = [('The first image', first), (f'The right image, at rank {pair["rank"]}', on_true_image)]
        images = attention_maps.results(pair, pixels)
        pairs.append({'caption': pair['caption'], 'verdict': pair['verdict'], 'images': images, 'maps': maps})
    title = f'Attention: {report["data"]}'
    return render('attention_page.html', **report | {'title': title, 'pairs': pairs})


def write(report: Mapping[str, Any], picture: Picture, folder: OutputFolder) -> str:
    """Writes `explain/explain.json` and the page `explain/index.html`.

    Args:
      report: The content of `explain.json`.
      picture: See `Picture`.
      folder: The output folder; other files of an older `write` are removed at the end.

    Returns:
      A sentence that names the page.

    Raises:
      UserError: If jitm did not write an existing file, or a file cannot be written.
    """
    described, index = FILES
    pairs = report['pairs']
    html = page(report, picture) if has_mismatches(report) else attention_page(report, picture)
    folder.claim(FILES)
    for name, content in ((described, json.dumps(report, ensure_ascii=False) + '\n'), (index, html)):
        with folder.replacing(name) as file:
            file.write(content.encode())
    folder.remove(name for name in folder.names if name.startswith('explain/') and name not in FILES)
    return f'{len(pairs)} pairs explained in {folder.path / index}'


def has_mismatches(report: Mapping[str, Any]) -> bool:
    """Returns whether the content of `explain.json` has mismatched words; otherwise it has attention."""
    return 'mismatch' in report['pairs'][0]
