"""One split of an image-text data set, whatever it was read or made from."""

import dataclasses
import functools
import hashlib
import json

import numpy as np


@dataclasses.dataclass(frozen=True)
class Split:
    """Images, sentences, and which sentence describes which image.

    Attributes:
      name: for messages and protocols, such as `f8k_precomp/dev`.
      regions: float16 or float32 [I, R, D]; may be memory-mapped. A global feature vector is one region.
      counts: int32 [I], how many regions of each image are real.
      captions: T sentences, as they were written.
      image_of_text: int32 [T], the image each sentence describes.
      image_ids: I names.
      boxes: float32 [I, R, 4] as x1 y1 x2 y2 in [0, 1], or None.
      pixels: uint8 [I, H, W, 3], or None.
      dataset: which data set this is a split of, such as `f30k`; '' if that is not known.
    """

    name: str
    regions: np.ndarray
    counts: np.ndarray
    captions: tuple[str, ...]
    image_of_text: np.ndarray
    image_ids: tuple[str, ...]
    boxes: np.ndarray | None = None
    pixels: np.ndarray | None = None
    dataset: str = ''

    @property
    def num_images(self) -> int:
        """I."""
        return len(self.regions)

    @property
    def identity(self) -> dict[str, object]:
        """What tells this split from another: shape and dtype of its regions, and a hash.

        The hash is over the captions, their images, and the regions of 64 images spread over the split.
        """
        some = np.unique(np.linspace(0, self.num_images - 1, 64).astype(int))
        regions = np.ascontiguousarray(self.regions[some]).tobytes()
        text = json.dumps([self.captions, self.image_of_text.tolist()]).encode()
        digest = hashlib.sha256(text + regions).hexdigest()
        return {'regions': list(self.regions.shape), 'dtype': str(self.regions.dtype), 'hash': digest}

    @functools.cached_property
    def boxes_hash(self) -> str:
        """A hash of the boxes, for models that read them."""
        return hashlib.sha256(np.ascontiguousarray(self.boxes)).hexdigest()

    @property
    def num_texts(self) -> int:
        """T."""
        return len(self.captions)

    @functools.cached_property
    def texts_of_image(self) -> tuple[np.ndarray, np.ndarray]:
        """All texts, int [T], image by image, and where each image's begin in them, int [I + 1]."""
        starts = np.searchsorted(np.sort(self.image_of_text), np.arange(self.num_images + 1))
        return np.argsort(self.image_of_text, kind='stable'), starts

    def locations(self, index: np.ndarray) -> np.ndarray:
        """Where the regions of N images are, from their boxes: float32 [N, R, 7], see `Images`."""
        corners = self.boxes[index]
        size = corners[..., 2:] - corners[..., :2]
        return np.concatenate([corners, size, size.prod(axis=-1, keepdims=True)], axis=-1)

    def draw_texts(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws one of the texts of each of some images: int [N]."""
        texts, starts = self.texts_of_image
        return texts[rng.integers(starts[images], starts[images + 1])]
