"""A loaded run: a trained model that encodes, compares and searches images and captions."""

import dataclasses
import functools
import hashlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tqdm

from jitm.data.images.transforms import is_photo
from jitm.data.splits import Split, pad_texts
from jitm.encoders import features, text_network
from jitm.encoders.networks import FeatureNetwork, restore
from jitm.errors import UserError, did_you_mean, require
from jitm.evaluation.protocol import check_vectors
from jitm.inference.engine import Engine, concatenate, pad
from jitm.models.matcher import Encoding
from jitm.runs.progress import ignore
from jitm.runs.run import Run, read_split
from jitm.serving.encodings import check, features_of_crops, image_batches, read_captions, shapes, vector_key
from jitm.serving.images import ImageReader, as_split, check_photos, is_list, open_images
from jitm.serving.index import Index, update
from jitm.serving.search import Hit, check_count, rank
from jitm.types import Images

FEW_TEXTS = 4  # such as a query; a full call takes about seven times as long


class LoadedRun:
    """A trained model with its tokenizer and its config, ready to encode and compare images and captions.

    Encodings are arrays, or pytrees of arrays, with the item on axis 0. Calls reuse functions compiled earlier.

    Attributes:
      run: The run as plain data: workdir, step, model, variables, vocabulary and config.
    """

    def __init__(self, run: Run, encoder: str | Path | None = None):
        """Moves the parameters of a run to the device.

        Args:
          run: The run.
          encoder: The run directory, or the weights, of the network that encoded the features of the run, or the folder
            of its text encoder, if it has moved.
        """
        self.run = run
        self._moved = text_network.split_moved(run.encoded_by, encoder)
        evaluation = run.config['evaluation']
        self._engine = Engine(run.model, run.variables, evaluation['dtype'], evaluation['precision'])

    def __repr__(self) -> str:
        return repr(self.run)

    def load_data(self, split: str, data_root: str | None = None) -> Split:
        """Loads a split of the data set that the run was trained on.

        Args:
          split: The name of the split, such as 'test'.
          data_root: The data folder, if it has moved since training.

        Returns:
          The split; its `images` are the model's inputs, region features or pixels.

        Raises:
          UserError: If the data cannot be read.
        """
        data = read_split([self.run], split, data_root)
        if 'pixels' in self.run.model.reads:
            data = dataclasses.replace(data, regions=None, counts=None, boxes=None)
        return data

    @functools.cached_property
    def network(self) -> FeatureNetwork:
        """The network that encoded the training features; a UserError if it is unknown, or not found."""
        check_photos(self.run, 'photos')
        return restore(self.run.encoded_by, self.run.workdir, self._moved.photos)

    @functools.cached_property
    def text_network(self) -> text_network.TextNetwork:
        """The text encoder whose vectors of tokens the run was trained on; a UserError if it is not found."""
        return text_network.restore(self.run.encoded_by, self.run.workdir, self._moved.texts)

    def restore_networks(self) -> None:
        """Restores the networks for captions and of `encoder`; a UserError if one is not found."""
        if any(self._moved) and self.run.encoded_by is None:
            raise UserError(f'{self.run.workdir} was not trained on features of jitm encode: leave --encoder out')
        if self.run.model.text_format.vectors:
            _ = self.text_network
        if self._moved.photos:
            _ = self.network

    def encode_image(self, images: Any, boxes: Any = None, tags: Sequence[str] | None = None) -> Encoding:
        """Encodes images.

        Args:
          images: Region features [I, R, F], a list of I arrays [R_i, F] or vectors [F], or a `Split`. For models of
            pixels uint8 [I, H, W, 3], or a list of I photos: paths, bytes of image files, or photos of Pillow. Photos
            are also read by models of features that `jitm encode` wrote; the same network then encodes them. A single
            photo is a list of one.
          boxes: x1 y1 x2 y2 of the regions as fractions of width and height, [I, R, 4] or a list of [R_i, 4]; only for
            models that read the location of regions, and not needed with a split that has them.
          tags: The object tags of each image in one string, such as 'dog person'; only for models that read tags, and
            not needed with a split that has them.

        Returns:
          Leaves [I, ...].

        Raises:
          UserError: If there are no images, features, boxes or tags do not have these shapes or are not read by the
            model, or the network of the features is not found.
        """
        split = as_split(images, self.run, boxes, tags)
        if 'pixels' not in self.run.model.reads and split.regions is None:
            split = features.encode_split(self.network, split)
        parts = image_batches(split, self.run, self._engine.images_per_call)
        return concatenate([self._engine.encode_any('encode_image', part) for part in parts])

    def encode_text(self, captions: str | Sequence[str]) -> Encoding:
        """Tokenizes and encodes captions.

        A dual encoder encodes more than four captions as an evaluation does, to the last bit. Up to four are encoded in
        a smaller, faster call, and their scores differ by less than 1e-6.

        Args:
          captions: A list of T captions; a single caption is a list of one.

        Returns:
          The encodings: leaves [T, ...].

        Raises:
          UserError: If there are no captions, one is not a string or empty, or one is longer than the model reads.
        """
        tokens = read_captions([captions] if isinstance(captions, str) else captions, self.run)
        if self.run.model.text_format.vectors:
            tokens = self.text_network.add_vectors(tokens)
        index = np.arange(len(tokens.lengths))
        engine = self._engine
        if engine.is_dual and len(index) > FEW_TEXTS:
            return engine.encode_each_alike(tokens, index)
        return engine.encode_any('encode_text', pad_texts(tokens, index, engine.padded_length(tokens.lengths)))

    @functools.cached_property
    def _shapes(self) -> dict[str, Any]:
        return shapes(self.run)

    def similarity(self, images: Encoding, captions: Encoding) -> np.ndarray:
        """Scores every image with every caption.

        Args:
          images: I encoded images.
          captions: T encoded captions.

        Returns:
          float32 [I, T], higher for better matches.

        Raises:
          UserError: If one of them is not an encoding of this run.
        """
        check(images, 'images', self._shapes)
        check(captions, 'captions', self._shapes)
        return self._engine.similarity(images, captions)

    def similarity_pairwise(self, images: Encoding, captions: Encoding) -> np.ndarray:
        """Scores image n with caption n, as many of each, see `similarity`: float32 [N]."""
        rows = check(images, 'images', self._shapes)
        columns = check(captions, 'captions', self._shapes)
        if rows != columns:
            raise UserError(
                f'there are {rows} images and {columns} captions; similarity_pairwise needs as many of each'
            )
        return self._engine.similarity_pairwise(images, captions)

    def describe_unknown_words(self, caption: str) -> str:
        """Returns a line that names the unknown words of a caption; '' if there are none."""
        words = self.run.vocabulary.unknown_words(caption)
        return f'words that the vocabulary of {self.run.workdir} lacks: {", ".join(words)}' if words else ''

    def warn_of_unknown_words(self, query: str | Sequence[str]) -> None:
        """Warns of unknown words in a single caption; a list may be a data set with its rare words."""
        unknown = self.describe_unknown_words(query) if isinstance(query, str) else ''
        if unknown:
            warnings.warn(unknown, stacklevel=3)

    def search(
        self, query: str | Sequence[str], images: Encoding | Index, top_k: int = 10
    ) -> list[Hit] | list[list[Hit]]:
        """Returns the images that match a caption best; warns of unknown words in a single caption.

        Args:
          query: A caption, or a list of captions.
          images: I encoded images, or an index of them.
          top_k: The number of results; all images if there are fewer.

        Returns:
          The hits in descending order of their scores, equal scores in the order of the images; a list of such lists
          for a list of captions.

        Raises:
          UserError: If `images` is not an encoding or an index of this run, or `top_k` is not positive.
        """
        check_count(top_k, 'top_k')
        captions = self.encode_text(query)
        self.warn_of_unknown_words(query)
        if isinstance(images, Index):
            if images.model != self.model_key:
                raise UserError(
                    f'the index {images.folder} was made by another model than {self.run.workdir}, step '
                    f'{self.run.step}; make it again with jitm search or run.index'
                )
            hits = images.top(self.vectors(captions), top_k)
        else:
            hits = [rank(column, top_k) for column in self.similarity(images, captions).T]
        return hits[0] if isinstance(query, str) else hits

    def encode(
        self,
        inputs: Any = None,
        *,
        sentences: Any = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        **unused: None,
    ) -> Any:
        """Encodes captions or images as vectors, with the arguments of `SentenceTransformer.encode` that apply here.

        Args:
          inputs: A caption or a list of captions; or images as for `encode_image`, where a path is a
            `pathlib.Path`; or a single photo.
          sentences: The same by SentenceTransformer's keyword.
          batch_size: The number of inputs that are encoded at a time; None for all.
          show_progress_bar: Shows the progress over the batches.
          convert_to_numpy: Returns an array; False for a list of tensors of torch.
          convert_to_tensor: Returns a tensor of torch.
          normalize_embeddings: Returns vectors of unit length.
          **unused: Other arguments of `SentenceTransformer.encode`, which may be None only.

        Returns:
          float32 [N, D], or [D] for one caption, path or photo. Scores are the inner products.

        Raises:
          UserError: If the scores of the model are not inner products, these are no captions or images, an argument
            does not apply, or torch is needed and not installed.
        """
        self.check_vectors()
        wrong = [name for name, value in unused.items() if value is not None]
        if wrong:
            names = inspect.signature(self.encode).parameters.keys() - {'unused'}
            raise UserError(f'encode accepts no {", ".join(wrong)} here: leave it out{did_you_mean(wrong[0], names)}')
        if (inputs is None) == (sentences is None):
            raise UserError('encode needs captions or images, as its first argument or as sentences: give one of them')
        inputs = sentences if inputs is None else inputs
        is_single = is_photo(inputs)
        listed = [inputs] if is_single else inputs
        parts = [inputs]
        if is_list(listed):
            size = len(listed) if batch_size is None else batch_size
            if not len(listed):
                raise UserError('there is nothing to encode; give captions or images')
            check_count(size, 'batch_size')
            starts = tqdm.trange(0, len(listed), size, unit='batch', disable=not show_progress_bar)
            parts = (listed[start : start + size] for start in starts)
        encode = self.encode_text if is_list(listed) and isinstance(listed[0], str) else self.encode_image
        vectors = np.concatenate([np.asarray(self.vectors(encode(part)), np.float32) for part in parts])
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        vectors = vectors[0] if is_single else vectors
        if convert_to_numpy and not convert_to_tensor:
            return vectors
        tensor = require('torch', extra='parity').from_numpy(vectors.copy())
        return tensor if convert_to_tensor or is_single else list(tensor)

    def vectors(self, encoding: Encoding) -> np.ndarray:
        """Returns the vectors [N, D] of N encodings, whose inner products are the scores; see `check_vectors`."""
        self.check_vectors()
        return np.asarray(self.run.model.vectors(encoding))

    def check_vectors(self) -> None:
        """Raises a UserError unless the scores are inner products of vectors."""
        check_vectors(self.run, 'its images have no index; use a dual encoder, such as VSE++')

    @functools.cached_property
    def model_key(self) -> str:
        """A hash of all inputs of a vector besides the image, see `encodings.vector_key`."""
        return vector_key(self.run)

    def index_folder(self, images: str | Path | Split) -> Path:
        """Returns the folder in the run directory in which images are indexed, see `index`."""
        if isinstance(images, Split):
            return self.run.workdir / 'index' / images.name.replace('/', '_')
        path = Path(images).absolute()
        return self.run.workdir / 'index' / f'{path.name}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}'

    def index(
        self,
        images: str | Path | Split,
        folder: str | Path | None = None,
        report: Callable[[int, int], None] = ignore,
    ) -> Index:
        """Encodes images once and keeps their vectors in a folder; later calls encode new and changed images.

        Args:
          images: A folder of photos, a file of features, or a split, see `images.open_images`.
          folder: The folder of the index; None for `index_folder`.
          report: Called with the numbers of finished images and of all images that are new or changed.

        Returns:
          The index; its `unreadable` names the images that were left out.

        Raises:
          UserError: If no image can be read, the model has no vectors, or the index cannot be written.
        """
        self.check_vectors()
        reader = ImageReader(open_images(images, self.run), self.run)
        folder = self.index_folder(images) if folder is None else Path(folder)
        return update(reader, folder, self.model_key, self._encode_vectors, self._engine.images_per_call, report)

    def _encode_vectors(self, images: Images) -> np.ndarray:
        """Encodes up to `images_per_call` images of an `ImageReader`, padded to this number, as float32 [N, D]."""
        if 'pixels' not in self.run.model.reads and images.regions is None:
            images = features_of_crops(self.network, images.pixels, self.run.feature_scale)
        count = len(jax.tree.leaves(images)[0])
        encoded = self._engine.encode('encode_image', pad(images, self._engine.images_per_call))
        return np.asarray(self.vectors(encoded)[:count], np.float32)
