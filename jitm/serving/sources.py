"""Where the images of an index come from: the features of a split or of a file."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jitm.data.pipeline import take_images, tokenize_tags
from jitm.data.precomp import open_npy
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.runs.run import Run, check_split
from jitm.serving.index import Entry
from jitm.types import Images


class Item(NamedTuple):
    """An image that was read.

    Attributes:
      entry: its file, or its features.
      image: what `Source.stack` takes; None if it cannot be read.
      problem: why it cannot be read; '' if it can.
    """

    entry: Entry
    image: Any
    problem: str = ''


class Source(Protocol):
    """Images to index.

    Attributes:
      names: of the I images, unique, in the order of the index.
    """

    names: Sequence[str]

    def stat(self, name: str) -> tuple[int, int] | None:
        """Returns size and time of an image's file, equal if its content is; None if it must be read to know."""
        ...

    def read(self, name: str) -> Item:
        """Reads an image; called in several threads."""
        ...

    def stack(self, images: Sequence[Any]) -> Images:
        """Returns read images as those of a model."""
        ...


class SplitImages:
    """The images of a split, named by their ids, or by their numbers where an id occurs twice."""

    def __init__(self, split: Split, run: Run):
        """Checks that the model of a run can read the images of a split.

        Raises:
          UserError: if it cannot.
        """
        check_split(split, run)
        self.split, self._reads = split, run.model.reads
        self._tags = tokenize_tags(split.tags, run.vocabulary) if 'tags' in self._reads else None
        ids = split.image_ids
        self.names = list(ids) if len(set(ids)) == split.num_images else list(map(str, range(split.num_images)))
        self._row = {name: row for row, name in enumerate(self.names)}

    def stat(self, name: str) -> None:
        """Returns None: features are compared by their checksums, which is fast."""

    def read(self, name: str) -> Item:
        """Reads the features of an image."""
        row = self._row[name]
        images = self.stack([row])
        content = b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(images))
        return Item(Entry(name, len(content), 0, hashlib.sha256(content).hexdigest()), row)

    def stack(self, images: Sequence[int]) -> Images:
        """Returns the features of some rows."""
        return take_images(self.split, np.array(images), self._reads, self._tags)


def read_features(path: Path) -> Split:
    """Opens a file of features as a split without captions, whose images are named by their numbers.

    Args:
      path: a `.npy` file of floats [I, R, F], or of vectors [I, F].

    Raises:
      UserError: if it is not such a file.
    """
    regions = open_npy(str(path))
    regions = regions[:, None] if regions.ndim == 2 else regions
    if regions.ndim != 3 or not regions.size:
        raise UserError(f'{path} has shape {list(regions.shape)}; give features [images, regions, features]')
    counts = np.full(len(regions), regions.shape[1], np.int32)
    return Split(path.name, regions, counts, (), np.zeros(0, np.int32), tuple(map(str, range(len(regions)))))
