"""Results of a run on a split for the explorer: ranked images and captions, and word-level outputs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import doubtful_pairs
from jitm.evaluation.explain import WordOutputs, has_word_outputs
from jitm.inference.scoring import ScoringOptions
from jitm.models.matcher import DualEncoder, Encoding
from jitm.pages.render import format_score
from jitm.runs.run import load_run, read_split, read_tokens
from jitm.serving.images import view_of
from jitm.serving.index import Index
from jitm.serving.loaded_run import LoadedRun
from jitm.serving.search import Hit, VectorSearch, rank

MAX_CHARACTERS = 1000  # longest typed caption; a longer one would compile for minutes
DOUBTFUL = 48  # pairs that are shown


class Explored:
    """A run whose images are encoded; scores of typed captions and of the captions of the split.

    Attributes:
      name: The run directory.
      run: The run.
      has_index: Whether the images have an index, with which `jitm search` returns the same results.
      view: See `view_of`.
    """

    def __init__(self, run: LoadedRun, data: Split):
        """Encodes the images, or reads their index.

        Args:
          run: Any run that reads the split.
          data: The split.

        Raises:
          UserError: If an image of the split cannot be read any more.
        """
        self.name = str(run.run.workdir)
        self.run = run
        self._data = data
        self.has_index = isinstance(run.run.model, DualEncoder)
        self.view = view_of(run.run)
        self._images: Encoding | Index = run.index(data) if self.has_index else run.encode_image(data)
        if self.has_index and self._images.unreadable:  # rows would differ from the split's
            name, problem = next(iter(self._images.unreadable.items()))
            raise UserError(f'{name} of {data.name} {problem}')

    @functools.cached_property
    def _captions(self) -> Encoding | VectorSearch:
        captions = self.run.encode_text(self._data.captions)
        return VectorSearch(self.run.vectors(captions)) if self.has_index else captions

    def rank_images(self, caption: str) -> list[Hit]:
        """Returns all images of the split in descending order of their scores with a caption."""
        return self.run.search([caption], self._images, len(self._data.image_ids))[0]

    def rank_captions(self, image: int) -> list[Hit]:
        """Returns all captions of the split in descending order of their scores with an image."""
        rows = self._images.vectors if self.has_index else self._images
        return self._rank_captions(jax.tree.map(lambda x: x[image : image + 1], rows))

    def _rank_captions(self, encoded: Encoding) -> list[Hit]:
        """Returns all captions in descending order of their scores with an encoded image, or its vector [1, D]."""
        count = len(self._data.captions)
        if self.has_index:
            return self._captions.top(encoded, count)[0]
        return rank(self.run.similarity(encoded, self._captions)[0], count)

    @functools.cached_property
    def doubtful(self) -> list[dict[str, Any]]:
        """The pairs of the split that are most likely mismatched, by `jitm audit` with one round, without noise."""
        doubt = doubtful_pairs.doubts(self.run.run, self._data, rounds=1, options=ScoringOptions())
        return doubtful_pairs.describe(doubt, self._data, DOUBTFUL)

    def rank_all(self, photo: bytes) -> tuple[list[Hit], list[Hit]]:
        """Returns all images and all captions in descending order of their scores with a photo.

        Args:
          photo: The content of an image file.

        Returns:
          Hits of images, empty for a model that compares images with captions only, and hits of captions.

        Raises:
          UserError: If the model cannot read photos, or this one.
        """
        encoded = self.run.encode_image([photo])
        if not self.has_index:
            return [], self._rank_captions(encoded)
        vector = self.run.vectors(encoded)
        return self._images.top(vector, len(self._images))[0], self._rank_captions(vector)

    @functools.cached_property
    def _outputs(self) -> WordOutputs | None:
        run = self.run.run
        text_network = self.run.text_network if run.model.text_format.vectors else None
        return WordOutputs(run, self._data, text_network=text_network) if has_word_outputs(run) else None

    def words(self, image: int, caption: str) -> dict[str, Any] | None:
        """Returns the attention of words, or the mismatched words, as a pair of `explain.json`; None without either.

        Args:
          image: A row of the split.
          caption: Any caption.
        """
        if self._outputs is None:
            return None
        split = self._data
        image_id = self._data.image_ids[image]
        score = next(hit.score for hit in self.rank_images(caption) if hit.index == image)
        pair = {
            'caption': caption,
            'image_id': image_id,
            'verdict': f'{image_id}, score {format_score(score)}',
            'retrieved': [{'image': image, 'image_id': image_id, 'score': score, 'right': False}],
            'boxes': None if split.boxes is None else split.boxes[image, : int(split.counts[image])].tolist(),
        }
        return pair | next(self._outputs.of([image], [caption]))


def check_caption(caption: str) -> str:
    """Returns a typed caption without blanks around it; raises a UserError if it is too long."""
    if len(caption) > MAX_CHARACTERS:
        raise UserError(f'the caption has {len(caption):,} characters; give at most {MAX_CHARACTERS:,}')
    return caption.strip()


def explore(
    workdirs: Sequence[str], split_name: str, data_root: str | None = None, encoder: str | None = None
) -> tuple[list[Explored], Split]:
    """Loads runs that were trained on the same data set, or on parts of it, and encodes a split with each.

    Args:
      workdirs: The run directories.
      split_name: The name of the split, such as 'test'.
      data_root: The data folder, if it has moved since training.
      encoder: See `LoadedRun`.

    Raises:
      UserError: If a run, the data, or the network that a query needs cannot be read.
    """
    runs = [LoadedRun(load_run(workdir), encoder) for workdir in workdirs]
    split = read_split([run.run for run in runs], split_name, data_root, trained_alike=False)
    for run in runs:
        read_tokens(run.run, split)
        run.restore_networks()
    return [Explored(run, split) for run in runs], split
