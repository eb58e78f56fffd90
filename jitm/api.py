"""The Python interface: load a run, encode images and captions, compare them, search and evaluate.

run = jitm.load('runs/demo')
data = run.load_data('test')
images = run.encode_image(data.images)
captions = run.encode_text(['a red ring above a blue square', *data.captions[:4]])
scores = run.similarity(images, captions)
hits = run.search('a red ring above a blue square', images, top_k=5)
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.pipeline import bucket, pad_texts, take_images, tokenize_tags
from jitm.data.splits import BOXES, Split, are_boxes
from jitm.data.text import Tokens, join
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.evaluation.scoring import DTYPES
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.run import Run, load_run, read_split
from jitm.types import Images, Texts

# Shapes are padded to few sizes, so that calls with other numbers of items reuse what was compiled.
MAX_ENCODED = 64  # images or captions encoded at a time
MAX_SCORED = 256  # images and captions scored at a time
COUNT_FACTOR = 4  # numbers of items are padded to powers of this
LENGTH_MULTIPLE = 8  # captions are padded to a multiple of this
REGION_MULTIPLE = 4


class Hit(NamedTuple):
    """One result of a search.

    Attributes:
      index: the position of the image among the encoded images.
      score: its similarity to the query, higher for better matches.
    """

    index: int
    score: float


@dataclasses.dataclass(frozen=True)
class ImageFeatures(Sequence):
    """The region features of I images; item i is a float array [R_i, F].

    Attributes:
      regions: float [I, R, F], possibly a memory-mapped file.
      counts: int32 [I], the number of valid regions of each image.
      boxes: float32 [I, R, 4] as x1 y1 x2 y2 in fractions of width and height; None if not known.
      tags: the object tags of each image in one string; None if not known.
    """

    regions: np.ndarray
    counts: np.ndarray
    boxes: np.ndarray | None = None
    tags: Sequence[str] | None = None

    def __len__(self) -> int:
        """Returns I."""
        return len(self.counts)

    def __getitem__(self, index: Any) -> Union[np.ndarray, 'ImageFeatures']:
        """Returns the features of one image, or of those that a slice or an index array selects."""
        if np.ndim(index) == 0 and not isinstance(index, slice):
            return np.asarray(self.regions[index])[: self.counts[index]]
        boxes = None if self.boxes is None else self.boxes[index]
        tags = None if self.tags is None else np.array(self.tags, object)[index].tolist()
        return ImageFeatures(self.regions[index], self.counts[index], boxes, tags)


@dataclasses.dataclass(frozen=True)
class Data:
    """A split of a data set.

    Attributes:
      name: such as 'scenes/test'.
      images: the region features of the I images.
      captions: the T captions.
      image_of_text: int32 [T], the image that each caption describes.
      image_ids: I names.
    """

    name: str
    images: ImageFeatures
    captions: tuple[str, ...]
    image_of_text: np.ndarray
    image_ids: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, method: str, dtype: str) -> Callable:
    """Returns `(variables, *arguments) -> result` of a method, compiled once for each shape of the arguments.

    Args:
      model: the model; equal models share what is compiled.
      method: such as 'encode_image'.
      dtype: of the encodings, a key of `DTYPES`; scores stay float32.
    """

    def cast(x: chex.Array) -> chex.Array:
        return x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def apply(variables: chex.ArrayTree, *arguments: chex.ArrayTree) -> chex.ArrayTree:
        result = model.apply(variables, *arguments, method=method)
        return jax.tree.map(cast, result) if method.startswith('encode') else result

    return jax.jit(apply)


def _padded_count(count: int) -> int:
    """Returns the next power of `COUNT_FACTOR`."""
    padded = 1
    while padded < count:
        padded *= COUNT_FACTOR
    return padded


def _take(tree: chex.ArrayTree, start: int, size: int) -> tuple[chex.ArrayTree, int]:
    """Returns up to `size` items of a tree from `start` on, padded with its first item, and how many are valid."""
    count = min(size, _num_items(tree) - start)
    index = np.arange(start, start + count)
    index = np.concatenate([index, np.zeros(_padded_count(count) - count, int)])
    return jax.tree.map(lambda x: np.asarray(x)[index], tree), count


def _num_items(tree: chex.ArrayTree) -> int:
    return len(jax.tree.leaves(tree)[0])


def _starts(tree: chex.ArrayTree, size: int) -> range:
    return range(0, _num_items(tree), size)


def _join(parts: list[chex.ArrayTree]) -> chex.ArrayTree:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _pad(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Pads arrays, each [R, D], with zeros to float32 [I, R, D]."""
    padded = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), np.float32)
    with np.errstate(over='ignore'):  # what is infinite in float32 is refused where it is encoded
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
    return padded


def _is_list(value: Any) -> bool:
    """Returns whether a value has items on axis 0: a list, a tuple or an array."""
    return getattr(value, 'ndim', 0) > 0 or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def _read_array(value: Any, what: str) -> np.ndarray:
    """Returns real numbers as an array; raises a UserError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array(None)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        given = f'an array of {array.dtype}' if hasattr(value, 'dtype') else type(value).__name__
        raise UserError(f'{what} must be an array of real numbers, not {given}')
    return array


class LoadedRun:
    """A trained model with its tokenizer and its config, ready to encode and compare images and captions.

    Encodings are arrays, or pytrees of arrays, with the item on axis 0. Calls reuse what earlier calls compiled.

    Attributes:
      run: the run as plain data: workdir, step, model, variables, vocabulary and config.
    """

    def __init__(self, run: Run):
        """Moves the parameters of a run to the device."""
        self.run = run
        self._variables = jax.tree.map(jnp.asarray, run.variables)

    def __repr__(self) -> str:
        run = self.run
        return f'<{type(run.model).__name__} {run.member} of {run.workdir}, step {run.step}>'

    def _apply(self, method: str, *arguments: chex.ArrayTree) -> chex.ArrayTree:
        function = _compiled(self.run.model, method, self.run.config['evaluation']['dtype'])
        return jax.device_get(function(self._variables, *arguments))

    def load_data(self, split: str, data_root: str | None = None) -> Data:
        """Loads a split of the data set that the run was trained on.

        Args:
          split: such as 'test'.
          data_root: the data folder, if it has moved since training.

        Returns:
          Images and captions.

        Raises:
          UserError: if the data cannot be read.
        """
        read = read_split([self.run], split, data_root)
        images = ImageFeatures(read.regions, read.counts, read.boxes, read.tags)
        return Data(read.name, images, read.captions, read.image_of_text, read.image_ids)

    def _read_images(self, images: Any, boxes: Any) -> ImageFeatures:
        """Checks images and boxes, and pads them to the same number of regions."""
        size = self.run.feature_size
        if isinstance(images, ImageFeatures):
            if images.regions.shape[2] != size:
                raise UserError(
                    f'images have features of shape {list(images.regions.shape)}; the run was trained on '
                    f'[images, regions, {size}]'
                )
            return images if boxes is None else dataclasses.replace(images, boxes=_check_boxes(boxes, list(images)))
        shape = getattr(images, 'shape', None)
        if not _is_list(images) or (shape is not None and len(shape) < 3):
            given = type(images).__name__ if shape is None else f'shape {list(shape)}'
            raise UserError(
                f'images are of {given}; give features [images, regions, {size}], or a list of [regions, {size}]'
            )
        arrays = [np.atleast_2d(_read_array(image, f'image {number}')) for number, image in enumerate(images)]
        if not arrays:
            raise UserError(f'there are no images; give features [images, regions, {size}]')
        for number, array in enumerate(arrays):
            if array.ndim != 2 or array.shape[1] != size or not len(array):
                raise UserError(
                    f'image {number} has features of shape {list(array.shape)}; the run was trained on '
                    f'[regions, {size}]'
                )
        boxes = None if boxes is None else _check_boxes(boxes, arrays)
        return ImageFeatures(_pad(arrays), np.array(list(map(len, arrays)), np.int32), boxes)

    def _pad_images(self, features: ImageFeatures, tags: Tokens | None, start: int) -> tuple[Images, int]:
        """Returns the images of one call of the encoder, and how many of them are valid."""
        count = min(MAX_ENCODED, len(features) - start)
        split = Split('', features.regions, features.counts, (), np.zeros(0, np.int32), (), features.boxes)
        images = take_images(split, np.arange(start, start + count), self.run.model.reads, tags)
        with np.errstate(over='ignore'):
            finite = np.isfinite(np.square(images.regions, dtype=np.float32).sum(axis=(1, 2)))
        if not finite.all():
            raise UserError(
                f'image {start + int(np.argmin(finite))} has features that are not finite, or whose squares are not '
                'in float32'
            )
        num_regions = images.regions.shape[1]
        extra = 0 if num_regions == 1 else -num_regions % REGION_MULTIPLE

        def pad(x: np.ndarray) -> np.ndarray:
            return np.pad(np.asarray(x, np.float32), ((0, 0), (0, extra), (0, 0)))

        images = images.replace(
            regions=pad(images.regions), locations=None if images.locations is None else pad(images.locations)
        )
        return _take(images, 0, count)

    def encode_image(self, images: Any, boxes: Any = None, tags: Sequence[str] | None = None) -> Encoding:
        """Encodes images.

        Args:
          images: region features [I, R, F], a list of I arrays [R_i, F] or vectors [F], or `Data.images`.
          boxes: x1 y1 x2 y2 of the regions as fractions of width and height, [I, R, 4] or a list of [R_i, 4]; only for
            models that read the location of regions, and not needed with `Data.images`.
          tags: the object tags of each image in one string, such as 'dog person'; only for models that read tags, and
            not needed with `Data.images`.

        Returns:
          The encodings: leaves [I, ...].

        Raises:
          UserError: if there are no images, or features, boxes or tags do not have these shapes.
        """
        features = self._read_images(images, boxes)
        if not len(features):
            raise UserError('there are no images; give at least one')
        if 'locations' in self.run.model.reads and features.boxes is None:
            raise UserError(f'{self.run.workdir} has a model that reads the location of regions: give their boxes')
        tag_tokens = self._read_tags(features.tags if tags is None else tags, len(features))
        parts = []
        for start in range(0, len(features), MAX_ENCODED):
            padded, count = self._pad_images(features, tag_tokens, start)
            parts.append(jax.tree.map(lambda x, count=count: x[:count], self._apply('encode_image', padded)))
        return _join(parts)

    def _read_tags(self, tags: Any, num_images: int) -> Tokens | None:
        """Checks and encodes the object tags of images; None for models that do not read them."""
        if 'tags' not in self.run.model.reads:
            return None
        if tags is None:
            raise UserError(f'{self.run.workdir} has a model that reads object tags: give the tags of each image')
        if not _is_list(tags) or len(tags) != num_images or not all(isinstance(words, str) for words in tags):
            raise UserError(f"tags must be {num_images} strings, such as 'dog person', one for each image")
        return tokenize_tags(tags, self.run.vocabulary)

    def encode_text(self, captions: Sequence[str]) -> Encoding:
        """Tokenizes and encodes captions.

        Args:
          captions: a list of T captions.

        Returns:
          The encodings: leaves [T, ...].

        Raises:
          UserError: if there are no captions, one is no string or empty, or one is longer than the model reads.
        """
        if not _is_list(captions):
            raise UserError(f'captions are of {type(captions).__name__}; give a list of strings')
        if not len(captions):
            raise UserError('there are no captions; give at least one')
        for number, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise UserError(f'caption {number} is of {type(caption).__name__}; give a string')
            if not caption.strip():
                raise UserError(f'caption {number} is empty; give at least one word')
        tokens = join([self.run.vocabulary.encode(caption) for caption in captions])
        longest, most = int(tokens.lengths.argmax()), self.run.model.text_format.max_length
        if most is not None and tokens.lengths[longest] > most:
            raise UserError(
                f'caption {longest} has {tokens.lengths[longest]} tokens, special tokens included, but the model reads '
                f'at most {most}; shorten it'
            )
        texts = pad_texts(tokens, np.arange(len(captions)), bucket(tokens.lengths.max(), LENGTH_MULTIPLE, most))
        parts = []
        for start in _starts(texts, MAX_ENCODED):
            padded, count = _take(texts, start, MAX_ENCODED)
            parts.append(jax.tree.map(lambda x, count=count: x[:count], self._apply('encode_text', padded)))
        return _join(parts)

    @functools.cached_property
    def _expected(self) -> dict[str, chex.ArrayTree]:
        """The shapes of the encodings of one image and of one caption."""
        model, size = self.run.model, self.run.feature_size
        locations = jnp.zeros((1, 1, 7)) if 'locations' in model.reads else None
        text = Texts(jnp.zeros((1, 2), jnp.int32), jnp.full(1, 2))
        tags = text if 'tags' in model.reads else None
        image = Images(jnp.zeros((1, 1, size)), jnp.ones(1, jnp.int32), locations=locations, tags=tags)

        def shapes(method: str, argument: chex.ArrayTree) -> chex.ArrayTree:
            return jax.eval_shape(lambda v, x: model.apply(v, x, method=method), self._variables, argument)

        return {'images': shapes('encode_image', image), 'captions': shapes('encode_text', text)}

    def _check_encoding(self, encoding: Encoding, side: str) -> None:
        """Raises a UserError unless a tree has the structure and the vector size of this run's encodings."""
        expected = self._expected[side]

        def fits(leaf: Any, one: jax.ShapeDtypeStruct) -> bool:
            shape = getattr(leaf, 'shape', ())
            floating = jnp.issubdtype(one.dtype, jnp.floating)
            return len(shape) == len(one.shape) and (not floating or shape[1:][-1:] == one.shape[1:][-1:])

        same = jax.tree.structure(encoding) == jax.tree.structure(expected)
        if not same or not all(map(fits, jax.tree.leaves(encoding), jax.tree.leaves(expected))):
            method = 'encode_image' if side == 'images' else 'encode_text'
            raise UserError(f'{side} are no encodings of this run; make them with run.{method}')
        if not _num_items(encoding):
            raise UserError(f'there are no {side}; give at least one')

    def similarity(self, images: Encoding, captions: Encoding) -> np.ndarray:
        """Scores every image with every caption.

        Args:
          images: I encoded images.
          captions: T encoded captions.

        Returns:
          float32 [I, T], higher for better matches.

        Raises:
          UserError: if one of them is not an encoding of this run.
        """
        self._check_encoding(images, 'images')
        self._check_encoding(captions, 'captions')
        sims = np.empty((_num_items(images), _num_items(captions)), np.float32)
        for row in _starts(images, MAX_SCORED):
            rows, num_rows = _take(images, row, MAX_SCORED)
            for column in _starts(captions, MAX_SCORED):
                columns, num_columns = _take(captions, column, MAX_SCORED)
                block = self._apply('similarity', rows, columns)[:num_rows, :num_columns]
                sims[row : row + num_rows, column : column + num_columns] = block
        return sims

    def similarity_pairwise(self, images: Encoding, captions: Encoding) -> np.ndarray:
        """Scores image n with caption n.

        Args:
          images: N encoded images.
          captions: N encoded captions.

        Returns:
          float32 [N], higher for better matches.

        Raises:
          UserError: if one of them is not an encoding of this run, or their numbers differ.
        """
        self._check_encoding(images, 'images')
        self._check_encoding(captions, 'captions')
        if _num_items(images) != _num_items(captions):
            raise UserError(
                f'there are {_num_items(images)} images and {_num_items(captions)} captions; '
                'similarity_pairwise needs as many of each'
            )
        parts = []
        for start in _starts(images, MAX_SCORED):
            (rows, count), (columns, _) = _take(images, start, MAX_SCORED), _take(captions, start, MAX_SCORED)
            parts.append(self._apply('similarity_pairwise', rows, columns)[:count])
        return np.concatenate(parts).astype(np.float32)

    def search(self, query: str | Sequence[str], images: Encoding, top_k: int = 10) -> list[Hit] | list[list[Hit]]:
        """Returns the images that match a caption best.

        Args:
          query: a caption, or a list of captions.
          images: I encoded images.
          top_k: the number of results; all images if there are fewer.

        Returns:
          The hits in descending order of their scores, equal scores in the order of the images; a list of such lists
          for a list of captions.

        Raises:
          UserError: if `images` is not an encoding of this run, or `top_k` is not positive.
        """
        if not isinstance(top_k, int | np.integer) or top_k < 1:
            raise UserError(f'top_k is {top_k}; it must be a positive integer')
        sims = self.similarity(images, self.encode_text([query] if isinstance(query, str) else query))
        hits = [
            [Hit(int(index), float(column[index])) for index in np.argsort(-column, kind='stable')[:top_k]]
            for column in sims.T
        ]
        return hits[0] if isinstance(query, str) else hits


def _check_boxes(boxes: Any, images: Sequence[np.ndarray]) -> np.ndarray:
    """Pads the boxes of images to float32 [I, R, 4]; raises a UserError for wrong shapes or values."""
    if not _is_list(boxes):
        raise UserError(f'boxes are of {type(boxes).__name__}; give x1 y1 x2 y2 of the regions of each image')
    boxes = [_read_array(one, f'the boxes of image {number}') for number, one in enumerate(boxes)]
    shapes, wanted = [list(one.shape) for one in boxes], [[len(image), 4] for image in images]
    if shapes != wanted:
        raise UserError(f'boxes have the shapes {shapes}; these images need {wanted}')
    if not all(map(are_boxes, boxes)):
        raise UserError(f'boxes must be {BOXES}')
    return _pad(boxes)


def _loaded(run: LoadedRun | Run | str | Path) -> LoadedRun:
    if isinstance(run, LoadedRun):
        return run
    return LoadedRun(run) if isinstance(run, Run) else load(run)


def load(workdir: str | Path, step: int | None = None, member: str | None = None) -> LoadedRun:
    """Loads a trained model; its tokenizer and its config are part of the checkpoint.

    Args:
      workdir: the run directory.
      step: the step of the checkpoint; None for the best on the validation split.
      member: name of the model in the config's `members`; None for the validated one.

    Returns:
      The loaded run.

    Raises:
      UserError: if the run, checkpoint or model does not exist, or is damaged.
    """
    if not isinstance(workdir, str | Path):
        raise UserError(f'the run is of {type(workdir).__name__}; give a run directory or the result of jitm.load')
    if not isinstance(step, int | np.integer | None) or not isinstance(member, str | None):
        raise UserError(f'step is {step!r} and member is {member!r}; give an integer and a name, or None')
    return LoadedRun(load_run(workdir, step, member))


def evaluate(
    run: LoadedRun | str | Path | Sequence[LoadedRun | str | Path],
    split: str,
    folds: int = 1,
    data_root: str | None = None,
) -> dict[str, float]:
    """Evaluates a run, or an ensemble of runs, on a split of its data set.

    Args:
      run: a loaded run or a run directory; a list is evaluated as an ensemble, by the mean of the similarities.
      split: such as 'test'.
      folds: consecutive parts of the images whose metrics are averaged.
      data_root: the data folder, if it has moved since training.

    Returns:
      Metrics in percent, such as 'i2t/recall@1' and 'rsum'.

    Raises:
      UserError: if the run or the data cannot be read, or the folds do not divide the images.
    """
    if not isinstance(folds, int | np.integer) or folds < 1:
        raise UserError(f'folds is {folds!r}; it must be a positive integer')
    given = run if _is_list(run) else [run]
    if not len(given):
        raise UserError('there is no run to evaluate; give at least one')
    runs = [_loaded(one).run for one in given]
    return evaluate_runs(runs, read_split(runs, split, data_root), folds)[0]['metrics']


def score(
    run: LoadedRun | Run | str | Path,
    image: np.ndarray | Sequence[np.ndarray],
    text: str | Sequence[str],
    boxes: np.ndarray | Sequence[np.ndarray] | None = None,
    tags: str | Sequence[str] | None = None,
) -> np.ndarray | np.float32:
    """Scores one image or several with one caption or several.

    Args:
      run: a loaded run, or a run directory, which is read anew at each call.
      image: features [R, F] of one image's regions, or a vector [F]; several: [I, R, F], or a list of [R, F].
      text: a caption, or a list of captions.
      boxes: x1 y1 x2 y2 of the regions as fractions of width and height, [R, 4]; for several images a list of such
        arrays. Only for models that read the location of regions.
      tags: the object tags of the image in one string, such as 'dog person'; for several images a list of strings. Only
        for models that read tags.

    Returns:
      float32, higher for better matches: a number, [I], [T] or [I, T], with an axis for each side that has several.

    Raises:
      UserError: if there is no such run, or the features do not have the size of the training features.
    """
    run = _loaded(run)
    one_image = getattr(image, 'ndim', 3) < 3
    one_text = isinstance(text, str)
    images, captions = [image] if one_image else image, [text] if one_text else text
    boxes, tags = ([side] if one_image and side is not None else side for side in (boxes, tags))
    sims = run.similarity(run.encode_image(images, boxes, tags), run.encode_text(captions))
    return sims[0 if one_image else slice(None), 0 if one_text else slice(None)]
