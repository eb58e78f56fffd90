"""One split of an image-text data set, or any other set of images, and its arrays for a model."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Union

import numpy as np

from jitm.data.arrays import Rows, locations
from jitm.data.images.pixels import Photos
from jitm.data.strings import Strings
from jitm.data.text.token_vectors import TokenVectors
from jitm.data.text.word_level import Tokens
from jitm.errors import UserError
from jitm.files import hash_arrays, hash_lists, hash_rows, json_parts
from jitm.types import Images, TextFormat, Texts

LENGTH_MULTIPLE = 4  # scored texts are padded to such lengths


def join_captions(captions: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the captions of I images as those of a split: T captions, and the image of each, int32 [T]."""
    images = np.arange(len(captions), dtype=np.int32)
    return tuple(itertools.chain.from_iterable(captions)), np.repeat(images, [*map(len, captions)])


@dataclasses.dataclass(frozen=True)
class Split:
    """Images, captions, and their correspondence; a set of images alone has no captions.

    It is a sequence of its images, see `__getitem__`.

    Attributes:
      name: The name in messages and protocols, such as `f8k_precomp/dev`.
      regions: float16 or float32 [I, R, D]; may be memory-mapped, or `Rows` of such an array. A global feature
        vector is one region. None without features.
      counts: int32 [I], number of valid regions of each image; None without features.
      captions: The T captions, not preprocessed.
      image_of_text: int32 [T], the image of each caption.
      image_ids: The names of the I images.
      boxes: float32 [I, R, 4] as x1 y1 x2 y2 in [0, 1], or None.
      pixels: uint8 [I, H, W, 3] or `jitm.data.images.pixels.Photos`, which decodes them when indexed; None for
        features only.
      dataset: The name of the data set, such as `f30k`; '' if unknown.
      tags: The object tags of the I images, each in one string, '' for none; None if not known.
      encoded_by: The network that computed the regions, as JSON, see `jitm.encoders.networks`; None if not known.
      original_image_of_text: int32 [T], the image of each caption before `jitm.data.pairs.noise` moved some, or None.
      token_vectors: The vectors of the captions' tokens by a frozen encoder, or None.
      scale: What a model reads is the regions times this number, see `take_images`.
    """

    name: str
    regions: np.ndarray | Rows | None = None
    counts: np.ndarray | None = None
    captions: tuple[str, ...] | Strings = ()
    image_of_text: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    image_ids: tuple[str, ...] | Strings = ()
    boxes: np.ndarray | None = None
    pixels: np.ndarray | None = None
    dataset: str = ''
    tags: tuple[str, ...] | None = None
    encoded_by: Mapping[str, Any] | None = None
    original_image_of_text: np.ndarray | None = None
    token_vectors: TokenVectors | None = None
    scale: float = 1.0

    PER_IMAGE: ClassVar = ('image_ids', 'tags', 'counts', 'boxes', 'pixels')  # and the regions
    PER_TEXT: ClassVar = ('captions', 'image_of_text', 'original_image_of_text', 'token_vectors')

    def __repr__(self) -> str:
        return f'<{self.name}: {self.num_images} images, {self.num_texts} captions>'

    @property
    def num_images(self) -> int:
        """I, the number of images."""
        return len(self.pixels if self.regions is None else self.regions)

    def __len__(self) -> int:
        """Returns I."""
        return self.num_images

    def __getitem__(self, index: Any) -> Union[np.ndarray, 'Split']:
        """Returns an image, or some of them.

        Args:
          index: A number, a slice, or int [N], each image once.

        Returns:
          For a number the features [R_i, D] of the valid regions, or without features the pixels uint8 [H, W, 3];
          otherwise `take` of the images.
        """
        if np.ndim(index) or isinstance(index, slice):
            return self.take(np.arange(self.num_images)[index])
        return self.pixels[index] if self.regions is None else np.asarray(self.regions[index])[: self.counts[index]]

    @property
    def images(self) -> Union[np.ndarray, Photos, 'Split']:
        """The images, for `LoadedRun.encode_image`: this sequence of features, or without features the pixels."""
        return self.pixels if self.regions is None else self

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """A unique name for each image: `image_ids`, or its number where an id occurs twice."""
        unique = len({*self.image_ids}) == self.num_images
        return tuple(self.image_ids) if unique else tuple(map(str, range(self.num_images)))

    @property
    def identity(self) -> dict[str, object]:
        """Shape and dtype of the regions, or of the pixels without features, with two hashes as identification.

        `hash` covers the captions, their images, and 64 evenly spaced images; `content` is `content_hash`.
        """
        field, array = ('pixels', self.pixels) if self.regions is None else ('regions', self.regions)
        digest = hashlib.sha256()
        for part in json_parts([self.captions, self.image_of_text]):
            digest.update(part)
        if getattr(array, 'broken', 'check') == 'check':
            digest.update(np.ascontiguousarray(array[np.unique(np.linspace(0, self.num_images - 1, 64).astype(int))]))
        hashes = {'hash': digest.hexdigest(), 'content': self.content_hash}
        return {field: list(array.shape), 'dtype': str(array.dtype)} | hashes

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256 of all regions with their numbers, or without features of all pixels or photo files, as hex."""
        if self.regions is not None:
            return hashlib.sha256((hash_rows(self.regions) + hash_arrays([self.counts])).encode()).hexdigest()
        return getattr(self.pixels, 'content_hash', None) or hash_rows(self.pixels)

    @functools.cached_property
    def captions_hash(self) -> str:
        """SHA-256 of the ids of the images, of the captions and of their images, as hex."""
        return hash_lists([self.image_ids, self.captions, self.image_of_text])

    @functools.cached_property
    def clean(self) -> np.ndarray | None:
        """Whether each caption is paired with its own image, bool [T]; None without noise."""
        original = self.original_image_of_text
        return None if original is None else original == self.image_of_text

    @property
    def feature_size(self) -> int | None:
        """D, the features per region; None without features."""
        return None if self.regions is None else self.regions.shape[2]

    @functools.cached_property
    def feature_deviation(self) -> float | None:
        """The standard deviation of the features that a model reads, of 64 evenly spaced images; None without features.

        Padded regions do not count.
        """
        if self.regions is None:
            return None
        rows = np.unique(np.linspace(0, self.num_images - 1, 64).astype(int))
        valid = np.arange(self.regions.shape[1]) < self.counts[rows, None]
        return self.scale * float(np.std(self.regions[rows][valid], dtype=np.float64))

    @property
    def num_texts(self) -> int:
        """T, the number of captions."""
        return len(self.captions)

    @functools.cached_property
    def texts_of_image(self) -> tuple[np.ndarray, np.ndarray]:
        """All texts sorted by image, int [T], and the start of each image's texts in them, int [I + 1]."""
        starts = np.searchsorted(np.sort(self.image_of_text), np.arange(self.num_images + 1))
        return np.argsort(self.image_of_text, kind='stable'), starts

    def captions_of(self, image: int) -> list[str]:
        """Returns the captions of an image."""
        texts, starts = self.texts_of_image
        return [self.captions[text] for text in texts[starts[image] : starts[image + 1]]]

    def images_with(self, caption: str) -> set[int]:
        """Returns the images that have a caption."""
        return {int(image) for text, image in zip(self.captions, self.image_of_text, strict=True) if text == caption}

    def take(self, images: np.ndarray) -> 'Split':
        """Returns some images with all their texts; their regions are read when they are indexed.

        Args:
          images: The rows of the images, int [N], each once.
        """
        position = np.full(self.num_images, -1, np.int32)
        position[images] = np.arange(len(images))
        part = self.take_texts(np.flatnonzero(position[self.image_of_text] >= 0))
        fields = self._rows(self.PER_IMAGE, images)
        if self.regions is not None:
            fields['regions'] = Rows(self.regions, images)
        return dataclasses.replace(part, image_of_text=position[part.image_of_text], **fields)

    def take_texts(self, texts: np.ndarray) -> 'Split':
        """Returns all images with some of their texts, int [N]."""
        return dataclasses.replace(self, **self._rows(self.PER_TEXT, texts))

    def _rows(self, names: Sequence[str], rows: np.ndarray) -> dict[str, Any]:
        """Returns some rows of the fields that have values."""
        fields = {}
        for name in names:
            values = getattr(self, name)
            if isinstance(values, tuple):
                fields[name] = tuple(map(values.__getitem__, rows)) if values else ()
            elif isinstance(values, Photos | Strings | TokenVectors):
                fields[name] = values.take(rows)
            elif values is not None:
                fields[name] = values[rows]
        return fields

    def sample_texts(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Samples one text of each of N images: int [N]."""
        texts, starts = self.texts_of_image
        return texts[rng.integers(starts[images], starts[images + 1])]


_LACKS = {  # input of a model -> the field of a split, and the message for a split without it
    'regions': (
        'regions',
        'has pixels and no region features, but the model reads regions: use a model of pixels, or give features of '
        'these images as data.root',
    ),
    'pixels': (
        'pixels',
        'has no pixels, but the model reads them: give the image files themselves, or use a model of region features',
    ),
    'locations': (
        'boxes',
        'has no boxes, but the model reads the locations of regions: add {}_boxes.npy or boxes.npy to its folder',
    ),
    'tags': ('tags', 'has no object tags, but the model reads them: add {}_tags.jsonl to its folder'),
}


def check_images(split: Split, reads: Collection[str]) -> None:
    """Raises a UserError if the images of a split lack an input of a model, see `Matcher.reads`."""
    for need, (field, problem) in _LACKS.items():
        if need in reads and getattr(split, field) is None:
            raise UserError(f'{split.name} {problem.format(split.name.rpartition("/")[2])}')


def take_images(
    split: Split, index: np.ndarray, reads: Collection[str] = ('regions',), tags: Tokens | None = None
) -> Images:
    """Reads some images into memory: the fields of `Images` that a model reads.

    Args:
      split: The split with the I images.
      index: The rows of the images, int [N].
      reads: See `Matcher.reads`.
      tags: `Tokens.tags` of the split, for models that read them; they are padded to the longest of the split.

    Returns:
      N images.
    """
    images = Images()
    if 'regions' in reads:
        regions = np.asarray(split.regions[index])
        if split.scale != 1:
            regions = np.multiply(regions, split.scale, dtype=np.float32)
        images = images.replace(regions=regions, counts=split.counts[index])
    if 'locations' in reads:
        images = images.replace(locations=locations(split.boxes[index]))
    if 'pixels' in reads:
        images = images.replace(pixels=np.asarray(split.pixels[index]))
    if 'tags' in reads:
        length = bucket(max(1, tags.lengths.max()), LENGTH_MULTIPLE)
        images = images.replace(tags=pad_texts(tags, index, length))
    return images


def check_lengths(split: Split, tokens: Tokens, text_format: TextFormat) -> None:
    """Raises a UserError if a caption of a split is longer than the maximum of a model."""
    kind = text_format.kind or 'words'
    maximum = text_format.max_length
    longest = tokens.lengths.argmax()
    if maximum is not None and tokens.lengths[longest] > maximum:
        raise UserError(
            f'{split.name}, text {longest} has {tokens.lengths[longest]} {kind} with special tokens, but the model '
            f'reads at most {maximum}: shorten this caption'
        )


def pad_texts(tokens: Tokens, index: np.ndarray, length: int) -> Texts:
    """Returns some texts of a split, padded with 0.

    Args:
      tokens: The captions of the split.
      index: The rows of the texts, int [N].
      length: The length L, at least their maximum length.

    Returns:
      Texts with ids [N, L] and lengths [N], and vectors [N, L, F] if the tokens have them.
    """
    lengths = tokens.lengths[index]
    valid = np.arange(length) < lengths[:, None]
    rows = tokens.rows(index)

    def padded(values: np.ndarray | Rows) -> np.ndarray:
        array = np.zeros((*valid.shape, *values.shape[1:]), values.dtype)
        array[valid] = values[rows]
        return array

    return Texts(padded(tokens.ids), lengths, None if tokens.vectors is None else padded(tokens.vectors))


def bucket(length: int, multiple: int, maximum: int | None = None) -> int:
    """Returns the padded length: the next multiple, so that few lengths are compiled, but at most the maximum."""
    padded = -(-int(length) // multiple) * multiple
    return padded if maximum is None else min(padded, maximum)
