"""The pages of the explorer: a query with its images, an image with its captions, and a pair with its hard negatives.

They are plain HTML without scripts, and pictures are part of the page.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from jitm.evaluation.retrieval import evenly_spaced
from jitm.report import attention_figures, explanations
from jitm.report.figures import to_png
from jitm.report.pictures import are_small, pictures_of, pixels_of, uri
from jitm.report.render import Result, render
from jitm.serving.explored import Explored, check_caption
from jitm.serving.inputs import SplitData
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
      runs: The runs, shown side by side.
      data: The split.
      photos: A folder with the pictures of its images, see `pictures_of`; or None.
    """

    runs: Sequence[Explored]
    data: SplitData
    photos: Path | None = None

    def home(self, caption: str) -> str:
        """Returns the page of a query: the best images of each run, or some images without a query.

        Raises:
          UserError: If the caption is too long for the explorer or for a model.
        """
        caption = check_caption(caption)
        if not caption:
            some = evenly_spaced(IMAGES, len(self.data.image_ids))
            return self._render('home', results=[self._image_result(image) for image in some])
        runs = [
            {
                'name': run.name,
                'unknown': run.describe_unknown_words(caption),
                'images': self._image_results(run.rank_images(caption)[:IMAGES], caption),
            }
            for run in self.runs
        ]
        return self._render('query', caption, runs=runs)

    def image(self, image: int, caption: str) -> str:
        """Returns the page of an image: its captions as each run ranks them, and the words of one caption.

        Args:
          image: A row of the split.
          caption: The caption whose words are shown; '' for none.

        Raises:
          NotFound: If the split has no such image.
          UserError: If the caption is too long.
        """
        if not 0 <= image < len(self.data.image_ids):
            raise NotFound
        caption = check_caption(caption)

        def describe(run: Explored) -> dict[str, Any]:
            hits = run.rank_captions(image)
            return {
                'name': run.name,
                'ranks': ', '.join(f'{n:,}' for n, hit in enumerate(hits, 1) if self._is_own(image, hit.index)),
                'captions': self._caption_results(hits[:CAPTIONS], image),
                'words': self._words(run, image, caption) if caption else None,
            }

        own = np.flatnonzero(self.data.image_of_text == image)
        return self._render(
            'image',
            caption,
            name=self.data.image_ids[image],
            picture=self._address(image),
            captions=[(text, self.data.captions[text]) for text in own],
            runs=list(map(describe, self.runs)),
            explanation=explanations.EXPLANATION,
        )

    def pair(self, text: int) -> str:
        """Returns the page of a caption and its image: the best images and captions that do not match.

        Raises:
          NotFound: If the split has no such caption.
        """
        if not 0 <= text < len(self.data.captions):
            raise NotFound
        caption, image = self.data.captions[text], int(self.data.image_of_text[text])

        def negatives(run: Explored) -> dict[str, Any]:
            images = run.rank_images(caption)
            rank, own = next((n, hit) for n, hit in enumerate(images, 1) if hit.index == image)
            harder = [hit for hit in images if hit.index != image][:NEGATIVES]
            captions = [hit for hit in run.rank_captions(image) if not self._is_own(image, hit.index)][:NEGATIVES]
            return {
                'name': run.name,
                'pair': dataclasses.replace(self._image_result(image, caption, own.score), right=True, rank=rank),
                'images': self._image_results(harder, caption),
                'captions': self._caption_results(captions, image),
            }

        return self._render('pair', caption, runs=list(map(negatives, self.runs)))

    def message(self, caption: str, message: str) -> str:
        """Returns a page with a message instead of results."""
        return self._render('message', caption, message=message)

    def _render(self, kind: str, caption: str = '', **values: Any) -> str:
        return render(
            f'explorer_{kind}.html',
            title=self.data.name,
            num_images=len(self.data.image_ids),
            num_captions=len(self.data.captions),
            caption=caption,
            small=self.photos is None and are_small(self.data.split),
            **values,
        )

    def _is_own(self, image: int, text: int) -> bool:
        return int(self.data.image_of_text[text]) == image

    def _address(self, image: int) -> str:
        return pictures_of(self.data.split, [image], self.photos).get(image, '')

    def _image_results(self, hits: Sequence[Hit], caption: str) -> list[Result]:
        return [self._image_result(hit.index, caption, hit.score) for hit in hits]

    def _image_result(self, image: int, caption: str = '', score: float | None = None) -> Result:
        """Returns an image with its picture, or its first caption without one, marked if the caption is its own."""
        own, address = self.data.captions_of(image), self._address(image)
        return Result(
            self.data.image_ids[image],
            score,
            picture=address,
            link=f'/image/{image}' + (f'?{urlencode({"q": caption})}' if caption else ''),
            right=caption in own or None,
            note='' if address or not own else own[0],
        )

    def _caption_results(self, hits: Sequence[Hit], image: int) -> list[Result]:
        texts = [self.data.captions[hit.index] for hit in hits]
        return [
            Result(
                text,
                hit.score,
                link=f'/image/{image}?{urlencode({"q": text})}',
                right=self._is_own(image, hit.index),
            )
            for hit, text in zip(hits, texts, strict=True)
        ]

    def _words(self, run: Explored, image: int, caption: str) -> dict[str, Any] | None:
        """Returns the attention of a caption's words on an image, or its mismatched words; None for other models."""
        pair = run.words(image, caption)
        if pair is None:
            return None
        pixels = pixels_of(self.data.split, image, self.photos)
        if 'mismatch' in pair:
            return explanations.shown(pair, [pixels])
        figure = attention_figures.draw(pair, None if pixels is None else [pixels])
        return {'caption': caption, 'figure': uri(to_png(figure), 'png')}
