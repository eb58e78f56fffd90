"""A loaded run: a trained model that encodes, compares and searches images and captions."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from jitm import parallel
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.models.matcher import DualEncoder, Encoding, Matcher
from jitm.runs.run import Run, read_split
from jitm.serving.batches import concatenate, num_items, starts, take
from jitm.serving.index import Index
from jitm.serving.indexing import update
from jitm.serving.inputs import (
    Data,
    check_features,
    check_pixels,
    check_tags,
    data_of,
    is_list,
    pad_features,
    read_captions,
)
from jitm.serving.sources import Source, open_source
from jitm.serving.vectors import Hit, check_top_k, rank
from jitm.types import DTYPES, Images, Texts

# Shapes are padded to few sizes, so that calls with other numbers of items reuse what was compiled.
MAX_ENCODED = 64  # images or captions encoded at a time
MAX_SCORED = 256  # images and captions scored at a time


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, method: str, dtype: str) -> Callable:
    """Returns `(rows, (variables, *others)) -> result` of a method, compiled once for each shape of the arguments.

    Args:
      model: the model; equal models share what is compiled.
      method: such as 'encode_image'.
      dtype: of the encodings, a key of `DTYPES`; scores stay float32.
    """

    def cast(x: chex.Array) -> chex.Array:
        return x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def apply(rows: tuple[chex.ArrayTree, ...], shared: tuple[chex.ArrayTree, ...]) -> chex.ArrayTree:
        variables, *others = shared
        result = model.apply(variables, *rows, *others, method=method)
        return jax.tree.map(cast, result) if method.startswith('encode') else result

    return parallel.map_rows(apply)


class LoadedRun:
    """A trained model with its tokenizer and its config, ready to encode and compare images and captions.

    Encodings are arrays, or pytrees of arrays, with the item on axis 0. Calls reuse what earlier calls compiled.

    Attributes:
      run: the run as plain data: workdir, step, model, variables, vocabulary and config.
    """

    def __init__(self, run: Run):
        """Moves the parameters of a run to the device."""
        self.run = run
        self._variables = parallel.put_everywhere(run.variables)

    def __repr__(self) -> str:
        run = self.run
        return f'<{type(run.model).__name__} {run.member} of {run.workdir}, step {run.step}>'

    def _apply(self, method: str, *rows: chex.ArrayTree, others: tuple[chex.ArrayTree, ...] = ()) -> chex.ArrayTree:
        """Applies a method of the model to rows, which are split over the devices, and to others, which are not."""
        function = _compiled(self.run.model, method, self.run.config['evaluation']['dtype'])
        others = parallel.put_everywhere(others)
        return jax.device_get(function(parallel.put_rows(rows), (self._variables, *others)))

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
        return data_of(read_split([self.run], split, data_root), self.run.model.reads)

    def encode_image(self, images: Any, boxes: Any = None, tags: Sequence[str] | None = None) -> Encoding:
        """Encodes images.

        Args:
          images: region features [I, R, F], a list of I arrays [R_i, F] or vectors [F], or `Data.images`; for models of
            pixels uint8 [I, H, W, 3], or a list of I paths or photos of Pillow.
          boxes: x1 y1 x2 y2 of the regions as fractions of width and height, [I, R, 4] or a list of [R_i, 4]; only for
            models that read the location of regions, and not needed with `Data.images`.
          tags: the object tags of each image in one string, such as 'dog person'; only for models that read tags, and
            not needed with `Data.images`.

        Returns:
          The encodings: leaves [I, ...].

        Raises:
          UserError: if there are no images, or features, boxes or tags do not have these shapes or are not read by the
            model.
        """
        for name, given, part in (('boxes', boxes, 'locations'), ('tags', tags, 'tags')):
            if given is not None and part not in self.run.model.reads:
                raise UserError(f'{self.run.workdir} has a model that does not read {name}: leave them out')
        if 'pixels' in self.run.model.reads:
            batches = self._pixel_batches(images)
        else:
            batches = self._feature_batches(images, boxes, tags)
        parts = []
        for batch in batches:
            padded, count = take(batch, 0, MAX_ENCODED)
            parts.append(jax.tree.map(lambda x, count=count: x[:count], self._apply('encode_image', padded)))
        return concatenate(parts)

    def _pixel_batches(self, images: Any) -> Iterator[Images]:
        pixels = check_pixels(images, self.run)
        for start in range(0, len(pixels), MAX_ENCODED):
            yield Images(pixels=np.asarray(pixels[start : start + MAX_ENCODED]))

    def _feature_batches(self, images: Any, boxes: Any, tags: Any) -> Iterator[Images]:
        features = check_features(images, boxes, self.run.feature_size)
        if not len(features):
            raise UserError('there are no images; give at least one')
        if 'locations' in self.run.model.reads and features.boxes is None:
            raise UserError(f'{self.run.workdir} has a model that reads the location of regions: give their boxes')
        tag_tokens = check_tags(features.tags if tags is None else tags, self.run, len(features))
        for start in range(0, len(features), MAX_ENCODED):
            yield pad_features(features, tag_tokens, start, MAX_ENCODED, self.run.model.reads)

    def encode_text(self, captions: Sequence[str]) -> Encoding:
        """Tokenizes and encodes captions.

        Args:
          captions: a list of T captions.

        Returns:
          The encodings: leaves [T, ...].

        Raises:
          UserError: if there are no captions, one is no string or empty, or one is longer than the model reads.
        """
        texts = read_captions(captions, self.run)
        parts = []
        for start in starts(texts, MAX_ENCODED):
            padded, count = take(texts, start, MAX_ENCODED)
            parts.append(jax.tree.map(lambda x, count=count: x[:count], self._apply('encode_text', padded)))
        return concatenate(parts)

    @functools.cached_property
    def _expected(self) -> dict[str, chex.ArrayTree]:
        """The shapes of the encodings of one image and of one caption."""
        model, size = self.run.model, self.run.feature_size
        text = Texts(jnp.zeros((1, 2), jnp.int32), jnp.full(1, 2))
        if 'pixels' in model.reads:
            image = Images(pixels=jnp.zeros((1, *self.run.image_size, 3), jnp.uint8))
        else:
            locations = jnp.zeros((1, 1, 7)) if 'locations' in model.reads else None
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
        if not num_items(encoding):
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
        sims = np.empty((num_items(images), num_items(captions)), np.float32)
        for row in starts(images, MAX_SCORED):
            rows, num_rows = take(images, row, MAX_SCORED)
            for column in starts(captions, MAX_SCORED):
                columns, num_columns = take(captions, column, MAX_SCORED)
                block = self._apply('similarity', rows, others=(columns,))[:num_rows, :num_columns]
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
        if num_items(images) != num_items(captions):
            raise UserError(
                f'there are {num_items(images)} images and {num_items(captions)} captions; '
                'similarity_pairwise needs as many of each'
            )
        parts = []
        for start in starts(images, MAX_SCORED):
            (rows, count), (columns, _) = take(images, start, MAX_SCORED), take(captions, start, MAX_SCORED)
            parts.append(self._apply('similarity_pairwise', rows, columns)[:count])
        return np.concatenate(parts).astype(np.float32)

    def search(
        self, query: str | Sequence[str], images: Encoding | Index, top_k: int = 10
    ) -> list[Hit] | list[list[Hit]]:
        """Returns the images that match a caption best.

        Args:
          query: a caption, or a list of captions.
          images: I encoded images, or an index of them.
          top_k: the number of results; all images if there are fewer.

        Returns:
          The hits in descending order of their scores, equal scores in the order of the images; a list of such lists
          for a list of captions.

        Raises:
          UserError: if `images` is not an encoding or an index of this run, or `top_k` is not positive.
        """
        check_top_k(top_k)
        captions = self.encode_text([query] if isinstance(query, str) else query)
        if isinstance(images, Index):
            self._check_index(images)
            hits = images.top(self.vectors(captions), top_k)
        else:
            hits = [rank(column, top_k) for column in self.similarity(images, captions).T]
        return hits[0] if isinstance(query, str) else hits

    def encode(self, inputs: Any, *, normalize_embeddings: bool = False, convert_to_tensor: bool = False) -> Any:
        """Encodes captions or images as vectors, with arguments of `SentenceTransformer.encode`.

        Args:
          inputs: a caption or a list of captions; or images as `encode_image` takes them, where a path is a
            `pathlib.Path`, a photo or a list of photos of Pillow.
          normalize_embeddings: returns vectors of unit length.
          convert_to_tensor: returns a tensor of torch.

        Returns:
          float32 [N, D], or [D] for one caption, path or photo. Scores are the inner products.

        Raises:
          UserError: if the scores of the model are not inner products, these are no captions or images, or torch is
            needed and not installed.
        """
        self.check_vectors()
        one = isinstance(inputs, str | Path | Image.Image)
        listed = [inputs] if one else inputs
        captions = is_list(listed) and len(listed) > 0 and isinstance(listed[0], str)
        encoded = self.encode_text(listed) if captions else self.encode_image(listed)
        vectors = np.asarray(self.vectors(encoded), np.float32)
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        vectors = vectors[0] if one else vectors
        if not convert_to_tensor:
            return vectors
        try:
            import torch
        except ImportError as error:
            raise UserError('convert_to_tensor needs torch; pip install torch') from error
        return torch.from_numpy(vectors.copy())

    def vectors(self, encoding: Encoding) -> np.ndarray:
        """Returns the vectors [N, D] of N encoded images or captions, whose inner products are the scores.

        Raises:
          UserError: if the scores of the model are not inner products.
        """
        self.check_vectors()
        return np.asarray(self.run.model.vectors(encoding))

    def check_vectors(self) -> None:
        """Raises a UserError unless the scores are inner products of vectors."""
        if not isinstance(self.run.model, DualEncoder):
            raise UserError(
                f'the scores of {self.run.workdir} are not inner products of vectors ({type(self.run.model).__name__} '
                'as configured), so its images have no index; take a dual encoder, such as VSE++'
            )

    @functools.cached_property
    def model_key(self) -> str:
        """A hash of the model, its parameters and the precision of its encodings, on which every vector depends."""
        run = self.run
        described = f'{run.model!r} {run.config["evaluation"]["dtype"]} {hash_arrays(jax.tree.leaves(run.variables))}'
        return hashlib.sha256(described.encode()).hexdigest()

    def _check_index(self, index: Index) -> None:
        if index.model != self.model_key:
            raise UserError(
                f'the index {index.folder} was made by another model than {self.run.workdir}, step {self.run.step}; '
                'make it anew with jitm search or run.index'
            )

    def index_folder(self, source: Source) -> Path:
        """Returns the folder in the run directory in which the images of a source are indexed."""
        return self.run.workdir / 'index' / source.label

    def index(
        self,
        images: str | Path | Data | Source,
        folder: str | Path | None = None,
        report: Callable[[int, int], None] | None = None,
    ) -> Index:
        """Encodes images once and keeps their vectors in a folder; later calls encode what is new or changed.

        Args:
          images: a folder of photos, a file of features, the result of `load_data`, or a source, see
            `sources.open_source`.
          folder: of the index; one in the run directory, named after the images, if None.
          report: is called with the numbers of finished images and of all images that are new or changed.

        Returns:
          The index; its `unreadable` names the images that were left out.

        Raises:
          UserError: if no image can be read, the model has no vectors, or the index cannot be written.
        """
        self.check_vectors()
        source = open_source(images, self.run)
        folder = self.index_folder(source) if folder is None else Path(folder)
        size = MAX_ENCODED * parallel.num_local_devices()
        return update(source, folder, self.model_key, functools.partial(self._encode_vectors, size), size, report)

    def _encode_vectors(self, size: int, images: Images) -> np.ndarray:
        """Encodes up to `size` images, padded to this number, as vectors float32 [N, D]."""
        count = num_items(images)
        padded = jax.tree.map(lambda x: x[np.resize(np.arange(count), size)], images)
        return np.asarray(self.vectors(self._apply('encode_image', padded))[:count], np.float32)
