"""The pages of the explorer: a query with its images, an image, a pair with its hard negatives, doubtful pairs.

They are plain HTML without scripts, and pictures are part of the page. Links are relative and all pages
are in one folder, so that a proxy may serve them below a path of its own.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import doubtful_pairs
from jitm.metrics import evenly_spaced
from jitm.pages.pictures import LARGE, NO_PICTURES, are_small, pictures_of, pixels_of, thumbnail, uri
from jitm.pages.render import Result, render
from jitm.report import attention_maps, explanations
from jitm.serving.explorer.explored import Explored, check_caption
from jitm.serving.search import Hit, best_and_first

IMAGES = 12  # shown for a query
NEGATIVES = 6  # images and captions shown for a pair
CAPTIONS = 20  # shown for an image
EXAMPLES = 4  # captions offered as queries
NO_PHOTOS = 'The model reads region features of an unknown network, so a photo cannot be the query'


class NotFound(Exception):
    """The split has no such image or caption."""


@dataclasses.dataclass(frozen=True)
class Site:
    """The pages of some runs on one split.

    Attributes:
      runs: The runs, shown side by side.
      data: The split.
      command: The command that serves the pages.
      flags: The flags with which other commands read the split, such as `--split test`.
      photos: A folder with the pictures of its images, see `pictures_of`; or None.
    """

    runs: Sequence[Explored]
    data: Split
    command: str
    flags: Sequence[str]
    photos: Path | None = None

    def home(self, caption: str) -> str:
        """Returns the page of a query: the best images of each run, or some images without a query.

        Raises:
          UserError: If the caption is too long for the explorer or for a model.
        """
        caption = check_caption(caption)
        if not caption:
            shown = evenly_spaced(IMAGES, len(self.data.image_ids))
            results = [self._image_result(image) for image in shown]
            examples = sorted({result.note for result in results if result.note}, key=len)[:EXAMPLES]
            problem = '' if self._reads_photos else NO_PHOTOS
            return self._render('home', results=results, examples=examples, problem=problem)
        runs = [
            {
                'name': run.name,
                'unknown': run.run.describe_unknown_words(caption),
                'images': self._image_results(run.rank_images(caption), IMAGES, caption),
                'command': self._search(run, IMAGES, caption),
            }
            for run in self.runs
        ]
        return self._render('query', caption, caption, runs=runs)

    def photo(self, name: str, photo: bytes) -> str:
        """Returns the page of any photo, in the split or not: the best images and captions of each run.

        Args:
          name: The name of the file.
          photo: Its content.

        Raises:
          UserError: If the photo, or any photo, cannot be read.
        """
        if not self._reads_photos:
            raise UserError(NO_PHOTOS)

        def describe(run: Explored) -> dict[str, Any]:
            if run.view is None:
                return {'name': run.name, 'problem': NO_PHOTOS}
            images, captions = run.rank_all(photo)
            flags = '--image', name
            return {
                'name': run.name,
                'problem': '',
                'images': self._image_results(images, IMAGES),
                'images_command': self._search(run, IMAGES, *flags),
                'captions': self._caption_results(captions[:CAPTIONS]),
                'captions_command': self._search(run, CAPTIONS, *flags, '--find', 'captions'),
            }

        picture = uri(thumbnail(photo, LARGE), 'jpeg')
        return self._render('photo', name, name=name, picture=picture, runs=list(map(describe, self.runs)))

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
                'ranks': ', '.join(f'{n:,}' for n, hit in enumerate(hits, 1) if owners[hit.index] == image),
                'captions': self._caption_results(hits[:CAPTIONS], image),
                'command': self._search(run, CAPTIONS, '--image', name, '--find', 'captions'),
                'words': self._words(run, image, caption) if caption else None,
            }

        name = self.data.names[image]
        owners = self.data.image_of_text
        return self._render(
            'image',
            self.data.image_ids[image],
            caption,
            name=self.data.image_ids[image],
            picture=pictures_of(self.data, [image], self.photos, LARGE).get(image, ''),
            captions=[(text, self.data.captions[text]) for text in np.flatnonzero(owners == image)],
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
        owners = self.data.image_of_text
        caption = self.data.captions[text]
        image = int(owners[text])

        def negatives(run: Explored) -> dict[str, Any]:
            images = run.rank_images(caption)
            rank, match = next((n, hit) for n, hit in enumerate(images, 1) if hit.index == image)
            harder = [hit for hit in images if hit.index != image][:NEGATIVES]
            captions = [hit for hit in run.rank_captions(image) if owners[hit.index] != image][:NEGATIVES]
            return {
                'name': run.name,
                'pair': self._image_result(image, caption, match.score, rank=rank, right=True),
                'images': self._image_results(harder, NEGATIVES, caption),
                'captions': self._caption_results(captions, image),
                'command': self._search(run, NEGATIVES + 1, caption),
            }

        return self._render('pair', f'Hard negatives: {caption}', caption, runs=list(map(negatives, self.runs)))

    def doubtful(self) -> str:
        """Returns the page of the pairs that are most likely mismatched by each run."""

        def result(pair: Mapping[str, Any]) -> Result:
            image = self._image_result(pair['image'], score=pair['doubt'])
            return dataclasses.replace(image, note=pair['caption'], link=f'pair?row={pair["text"]}')

        runs = []
        for run in self.runs:
            command = shlex.join(('jitm', 'audit', '--workdir', run.name, *self.flags, '--rounds', '1'))
            runs.append({'name': run.name, 'pairs': list(map(result, run.doubtful)), 'command': command})
        return self._render(
            'doubtful', 'Doubtful pairs', runs=runs, group=min(doubtful_pairs.PAIRS, self.data.num_texts)
        )

    def message(self, message: str) -> str:
        """Returns a page with a message instead of results."""
        return self._render('message', 'No results', message=message)

    @property
    def _reads_photos(self) -> bool:
        return any(run.view is not None for run in self.runs)

    def _search(self, run: Explored, count: int, *query: str) -> str:
        """Returns the command with the same results; '' if there is none."""
        query = ('--', *query) if len(query) == 1 and query[0].startswith('-') else query  # a caption
        words = 'jitm', 'search', '--workdir', run.name, *self.flags, '--top_k', str(count), *query
        return shlex.join(words) if run.has_index else ''

    def _render(self, kind: str, title: str = '', caption: str = '', **values: Any) -> str:
        return render(
            f'explorer_{kind}.html',
            title=f'{title or self.data.name} · jitm explorer',
            data=self.data.name,
            num_images=len(self.data.image_ids),
            num_captions=len(self.data.captions),
            caption=caption,
            small=self.photos is None and are_small(self.data),
            reads_photos=self._reads_photos,
            hint=NO_PICTURES if self.photos is None and self.data.pixels is None else '',
            command=self.command,
            **values,
        )

    def _image_results(self, hits: Sequence[Hit], count: int, caption: str = '') -> list[Result]:
        """Returns the best images for a query, and the first image of the caption if it is not one of them."""
        right = self.data.images_with(caption)
        return [
            self._image_result(hit.index, caption, hit.score, rank=rank, right=hit.index in right)
            for rank, hit in best_and_first(hits, count, right)
        ]

    def _image_result(self, image: int, caption: str = '', score: float | None = None, **marks: Any) -> Result:
        """Returns an image with its picture and its first caption; `marks` are further attributes of the result."""
        return Result(
            self.data.image_ids[image],
            score,
            picture=pictures_of(self.data, [image], self.photos).get(image, ''),
            link=_image_link(image, caption),
            note=next(iter(self.data.captions_of(image)), ''),
            **marks,
        )

    def _caption_results(self, hits: Sequence[Hit], image: int | None = None) -> list[Result]:
        """Returns captions with links to their words on an image; on their own images if none is given."""
        results = []
        for hit in hits:
            text = self.data.captions[hit.index]
            match = int(self.data.image_of_text[hit.index])
            link = _image_link(match if image is None else image, text)
            results.append(Result(text, hit.score, link=link, right=match == image))
        return results

    def _words(self, run: Explored, image: int, caption: str) -> dict[str, Any] | None:
        """Returns the attention of a caption's words on an image, or its mismatched words; None for other models."""
        pair = run.words(image, caption)
        if pair is None:
            return None
        pixels = pixels_of(self.data, image, self.photos, run.view)
        if 'mismatch' in pair:
            return explanations.shown(pair, pixels)
        return attention_maps.shown(pair, pixels)


def _image_link(image: int, caption: str) -> str:
    return f'image?{urlencode({"row": image} | ({"q": caption} if caption else {}))}'
