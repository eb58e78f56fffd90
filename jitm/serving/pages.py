"""The pages of the explorer: a query with its images, an image with its captions, and a pair with its hard negatives.

They are plain HTML without scripts; all text is escaped, and pictures are part of the page.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from jitm.report import attention, words
from jitm.report.figures import to_png
from jitm.report.markup import document, escape, section
from jitm.report.pictures import are_small, pictures_of, pixels_of, uri
from jitm.report.results import Result, cards, ranking
from jitm.report.retrieval import evenly_spaced
from jitm.serving.explored import Explored, check_caption
from jitm.serving.inputs import Data
from jitm.serving.vectors import Hit

IMAGES = 12  # shown for a query
NEGATIVES = 6  # images and captions shown for a pair
CAPTIONS = 20  # shown for an image


class NotFound(Exception):
    """The split has no such image or caption."""


@dataclasses.dataclass(frozen=True)
class Site:
    """The pages of some runs on one split.

    Attributes:
      runs: shown side by side.
      data: the split.
      photos: a folder with the pictures of its images, see `pictures_of`, or None.
    """

    runs: Sequence[Explored]
    data: Data
    photos: Path | None = None

    def home(self, caption: str) -> str:
        """Returns the page of a query: the best images of each run, or some images without a query.

        Raises:
          UserError: if the caption is too long for the explorer or for a model.
        """
        caption = check_caption(caption)
        if not caption:
            some = [
                self._image_result(Hit(image, 0.0), '') for image in evenly_spaced(IMAGES, len(self.data.image_ids))
            ]
            images = cards([dataclasses.replace(one, score=None) for one in some], self._small)
            return self._document('', f'<h2>Some images</h2>\n{images}')

        def best(run: Explored) -> str:
            hits, unknown = run.rank_images(caption)[:IMAGES], run.describe_unknown_words(caption)
            note = f'<p class="soft">{escape(unknown)}.</p>' if unknown else ''
            return note + cards([self._image_result(hit, caption) for hit in hits], self._small)

        return self._document(caption, self._side_by_side(best))

    def image(self, image: int, caption: str) -> str:
        """Returns the page of an image: its captions as each run ranks them, and the words of one caption.

        Args:
          image: a row of the split.
          caption: the caption whose words are shown; '' for none.

        Raises:
          NotFound: if the split has no such image.
          UserError: if the caption is too long.
        """
        if not 0 <= image < len(self.data.image_ids):
            raise NotFound
        caption = check_caption(caption)
        words = [self._words(run, image, caption) if caption else '' for run in self.runs]
        alone = len(self.runs) == 1  # figures of several runs are too wide to be side by side
        figures = [section(run.name, part) for run, part in zip(self.runs, words, strict=True) if part and not alone]

        def describe(run: Explored) -> str:
            hits = run.rank_captions(image)
            ranks = [f'{n:,}' for n, hit in enumerate(hits, 1) if self._is_own(image, hit.index)]
            own = f'<p class="soft">Its own captions are at the ranks {", ".join(ranks)}.</p>' if ranks else ''
            shown = ranking([self._caption_result(hit, image) for hit in hits[:CAPTIONS]])
            return f'{words[0] if alone else ""}\n<h3>Captions</h3>\n{own}{shown}'

        items = ''.join(
            f'<li>{escape(self.data.captions[text])} <small><a href="/pair/{text}">hard negatives</a></small></li>'
            for text in np.flatnonzero(self.data.image_of_text == image)
        )
        name = escape(self.data.image_ids[image])
        parts = [f'<h2>{name}</h2>', self._picture(image), f'<ul>{items}</ul>', *figures, self._side_by_side(describe)]
        return self._document(caption, '\n'.join(parts))

    def pair(self, text: int) -> str:
        """Returns the page of a caption and its image: the best images and captions that do not match.

        Raises:
          NotFound: if the split has no such caption.
        """
        if not 0 <= text < len(self.data.captions):
            raise NotFound
        caption, image = self.data.captions[text], int(self.data.image_of_text[text])

        def negatives(run: Explored) -> str:
            images = run.rank_images(caption)
            rank, own = next((n, hit) for n, hit in enumerate(images, 1) if hit.index == image)
            pair = dataclasses.replace(self._image_result(own, caption), right=True, rank=rank)
            harder = [hit for hit in images if hit.index != image][:NEGATIVES]
            captions = [hit for hit in run.rank_captions(image) if not self._is_own(image, hit.index)][:NEGATIVES]
            return '\n'.join(
                [
                    '<h3>The pair</h3>',
                    cards([pair], self._small),
                    '<h3>Hardest negative images of the caption</h3>',
                    cards([self._image_result(hit, caption) for hit in harder], self._small),
                    '<h3>Hardest negative captions of the image</h3>',
                    ranking([self._caption_result(hit, image) for hit in captions]),
                ]
            )

        return self._document(caption, self._side_by_side(negatives))

    def message(self, caption: str, message: str) -> str:
        """Returns a page with a message instead of results."""
        return self._document(caption, f'<p class="wrong" role="alert">{escape(message)}</p>')

    def _document(self, caption: str, body: str) -> str:
        form = (
            '<form action="/" method="get" role="search"><input type="text" name="q" aria-label="Caption" '
            f'placeholder="A caption" value="{escape(caption)}"><button>Search</button></form>'
        )
        split = f'{len(self.data.image_ids):,} images and {len(self.data.captions):,} captions'
        return document(self.data.name, f'<p class="soft">{split} · <a href="/">start</a></p>\n{form}\n{body}')

    def _side_by_side(self, show: Callable[[Explored], str]) -> str:
        parts = (section(run.name, show(run)) for run in self.runs)
        return '<div class="pair">' + ''.join(f'<div>{part}</div>' for part in parts) + '</div>'

    @property
    def _small(self) -> bool:
        return self.photos is None and are_small(self.data.split)

    def _is_own(self, image: int, text: int) -> bool:
        return int(self.data.image_of_text[text]) == image

    def _address(self, image: int) -> str:
        return pictures_of(self.data.split, [image], self.photos).get(image, '')

    def _picture(self, image: int) -> str:
        kind = ' class="small-pixels"' if self._small else ''
        address, name = self._address(image), escape(self.data.image_ids[image])
        return f'<img{kind} width="240" alt="{name}" src="{address}">' if address else ''

    def _image_result(self, hit: Hit, caption: str) -> Result:
        """Returns an image with its picture, or its first caption without one, marked if the caption is its own."""
        own = self.data.captions_of(hit.index)
        query = f'?{urlencode({"q": caption})}' if caption else ''
        address = self._address(hit.index)
        return Result(
            self.data.image_ids[hit.index],
            hit.score,
            picture=address,
            link=f'/image/{hit.index}{query}',
            right=caption in own or None,
            note='' if address or not own else own[0],
        )

    def _caption_result(self, hit: Hit, image: int) -> Result:
        text = self.data.captions[hit.index]
        link = f'/image/{image}?{urlencode({"q": text})}'
        return Result(text, hit.score, link=link, right=self._is_own(image, hit.index))

    def _words(self, run: Explored, image: int, caption: str) -> str:
        """Returns the attention of a caption's words on an image, or its mismatched words; '' for other models."""
        pair = run.words(image, caption)
        if pair is None:
            return ''
        pixels = pixels_of(self.data.split, image, self.photos)
        pixels = None if pixels is None else pixels[None]
        if 'mismatch' in pair:
            return f'<h3>Mismatched words</h3>\n<p class="soft">{words.EXPLANATION}</p>\n{words.article(pair, pixels)}'
        figure = attention.draw(pair, pixels)
        alt = escape(f'Attention of the words of: {caption}')
        return f'<h3>Attention</h3>\n<img alt="{alt}" src="{uri(to_png(figure), "png")}">'
