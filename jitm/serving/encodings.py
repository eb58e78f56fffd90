"""What a run encodes, in batches, and the shapes of its encodings, against which given encodings are checked.

Photos for a run on features are encoded by the network that encoded its training data.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.pixels import in_threads
from jitm.data.reading import take_images
from jitm.data.splits import grid_boxes
from jitm.data.transforms import Photo, Transform, decode
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.inference.engine import batches, num_items
from jitm.inference.networks import FeatureNetwork, crops_of
from jitm.models.matcher import Encoding
from jitm.runs.run import Run
from jitm.serving.inputs import ImageFeatures, check_features, check_pixels, check_tags, transform_of
from jitm.types import Images, Texts

REGION_MULTIPLE = 4


def image_batches(run: Run, images: Any, boxes: Any, tags: Any, size: int) -> Iterator[Images]:
    """Yields images in batches of up to `size`; for the arguments and errors see `LoadedRun.encode_image`."""
    reads = run.model.reads
    for name, given, part in (('boxes', boxes, 'locations'), ('tags', tags, 'tags')):
        if given is not None and part not in reads:
            raise UserError(f'{run.workdir} has a model that does not read {name}: leave them out')
    if 'pixels' in reads:
        pixels = check_pixels(images, run)
        for start in range(0, len(pixels), size):
            yield Images(pixels=np.asarray(pixels[start : start + size]))
        return
    features = check_features(images, boxes, run.feature_size)
    if not len(features):
        raise UserError('there are no images; give at least one')
    if 'locations' in reads and features.boxes is None:
        raise UserError(f'{run.workdir} has a model that reads the location of regions: give their boxes')
    tag_tokens = check_tags(features.tags if tags is None else tags, run, len(features))
    for start in range(0, len(features), size):
        rows = np.arange(start, min(start + size, len(features)))
        yield _pad_regions(take_images(features, rows, reads, tag_tokens), start)


def _pad_regions(images: Images, first: int) -> Images:
    """Pads regions to few numbers; raises a UserError if a feature is not finite, `first` being the first image."""
    with np.errstate(over='ignore'):
        finite = np.isfinite(np.square(images.regions, dtype=np.float32).sum(axis=(1, 2)))
    if not finite.all():
        raise UserError(
            f'image {first + int(np.argmin(finite))} has features that are not finite, or whose squares are not in '
            'float32'
        )
    num_regions = images.regions.shape[1]
    extra = 0 if num_regions == 1 else -num_regions % REGION_MULTIPLE

    def pad(x: np.ndarray) -> np.ndarray:
        return np.pad(np.asarray(x, np.float32), ((0, 0), (0, extra), (0, 0)))

    locations = None if images.locations is None else pad(images.locations)
    return images.replace(regions=pad(images.regions), locations=locations)


def shapes(run: Run) -> dict[str, chex.ArrayTree]:
    """Returns the shapes of the encodings of one of the 'images' and of one of the 'captions'."""
    model = run.model
    vectors = jnp.zeros((1, 2, run.encoded_by['texts']['size'])) if model.text_format.vectors else None
    text = Texts(jnp.zeros((1, 2), jnp.int32), jnp.full(1, 2), vectors)
    if 'pixels' in model.reads:
        image = Images(pixels=jnp.zeros((1, *run.image_size, 3), jnp.uint8))
    else:
        locations = jnp.zeros((1, 1, 7)) if 'locations' in model.reads else None
        tags = text if 'tags' in model.reads else None
        image = Images(jnp.zeros((1, 1, run.feature_size)), jnp.ones(1, jnp.int32), locations=locations, tags=tags)

    def of(method: str, argument: chex.ArrayTree) -> chex.ArrayTree:
        return jax.eval_shape(lambda v, x: model.apply(v, x, method=method), run.variables, argument)

    return {'images': of('encode_image', image), 'captions': of('encode_text', text)}


def check(encoding: Encoding, side: str, expected: dict[str, chex.ArrayTree]) -> None:
    """Raises a UserError unless a tree has the structure and the vector size of a run's encodings.

    Args:
      encoding: The tree.
      side: 'images' or 'captions'.
      expected: See `shapes`.
    """

    def fits(leaf: Any, one: jax.ShapeDtypeStruct) -> bool:
        shape = getattr(leaf, 'shape', ())
        floating = jnp.issubdtype(one.dtype, jnp.floating)
        return len(shape) == len(one.shape) and (not floating or shape[1:][-1:] == one.shape[1:][-1:])

    same = jax.tree.structure(encoding) == jax.tree.structure(expected[side])
    if not same or not all(map(fits, jax.tree.leaves(encoding), jax.tree.leaves(expected[side]))):
        method = 'encode_image' if side == 'images' else 'encode_text'
        raise UserError(f'{side} are not encodings of this run; make them with run.{method}')
    if not num_items(encoding):
        raise UserError(f'there are no {side}; give at least one')


def vector_key(run: Run) -> str:
    """Returns a hash of the model, its parameters, the precision, and the transform of photos if it reads pixels."""
    evaluation, arrays = run.config['evaluation'], hash_arrays(jax.tree.leaves(run.variables))
    described = f'{run.model!r} {evaluation["dtype"]} {evaluation["precision"]} {arrays}'
    if 'pixels' in run.model.reads:
        described += f' {transform_of(run)}'
    return hashlib.sha256(described.encode()).hexdigest()


def features_of_photos(network: FeatureNetwork, photos: Sequence[Photo], transform: Transform) -> ImageFeatures:
    """Returns the features of photos, those that `jitm encode` writes.

    Args:
      network: The network.
      photos: I photos, see `decode`.
      transform: How they become pixels.

    Raises:
      UserError: If a photo cannot be read.
    """
    view, size = crops_of(transform, network.crops), network.images_per_call

    def decoded() -> Iterator[np.ndarray]:
        for start in range(0, len(photos), size):
            batch = photos[start : start + size]
            names = [f'image {start + n}' for n in range(len(batch))]
            yield np.stack(in_threads(lambda n, b=batch, m=names: decode(b[n], view, m[n]), len(batch)))

    return _as_features(network.encode(decoded()))


def images_of_crops(network: FeatureNetwork, crops: np.ndarray) -> Images:
    """Returns the features of decoded photos as a model whose images have vectors reads them.

    Args:
      network: The network.
      crops: The crops of I photos, uint8 [I, C, H, W, 3].
    """
    features = _as_features(network.encode(batches(crops, network.images_per_call)))
    return Images(features.regions, features.counts)


def _as_features(batches: Iterator[np.ndarray]) -> ImageFeatures:
    regions = np.concatenate(list(batches))
    count = regions.shape[1]
    boxes = grid_boxes(count)
    boxes = None if boxes is None else np.broadcast_to(boxes, (len(regions), *boxes.shape))
    return ImageFeatures(regions, np.full(len(regions), count, np.int32), boxes)
