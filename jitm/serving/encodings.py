"""The inputs of a loaded run, and checks of encodings against their expected shapes."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.splits import Split, take_images
from jitm.data.text.vocabularies import tokenize_tags
from jitm.data.text.word_level import Tokens, join
from jitm.encoders.networks import FeatureNetwork
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.inference.engine import batches
from jitm.models.matcher import Encoding
from jitm.runs.run import Run
from jitm.serving.images import is_list, transform_of
from jitm.types import Images, Texts

REGION_MULTIPLE = 4


def image_batches(split: Split, run: Run, size: int) -> Iterator[Images]:
    """Yields the images of a split, as the model of a run reads them, up to `size` at a time.

    Raises:
      UserError: If a feature is not finite in float32, or its square.
    """
    reads = run.model.reads
    if 'locations' in reads and split.boxes is None:
        raise UserError(f'{run.workdir} has a model that reads the location of regions: give their boxes')
    tags = tokenize_tags(split.tags, run.vocabulary) if 'tags' in reads else None
    split = dataclasses.replace(split, scale=run.feature_scale)
    for rows in batches(np.arange(len(split)), size):
        images = take_images(split, rows, reads, tags)
        yield images if images.regions is None else _pad_regions(images, rows[0])


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
    regions, locations = (
        None if x is None else np.pad(np.asarray(x, np.float32), ((0, 0), (0, extra), (0, 0)))
        for x in (images.regions, images.locations)
    )
    return images.replace(regions=regions, locations=locations)


def features_of_crops(network: FeatureNetwork, crops: np.ndarray, scale: float) -> Images:
    """Encodes the crops of photos, uint8 [I, C, H, W, 3], as a model of a `Run.feature_scale` reads their vectors."""
    regions = scale * np.concatenate([*network.encode(batches(crops, network.images_per_call))])
    return Images(regions, np.full(len(regions), regions.shape[1], np.int32))


def read_captions(captions: Sequence[str], run: Run) -> Tokens:
    """Checks and tokenizes captions; for the errors see `LoadedRun.encode_text`."""
    if not is_list(captions):
        raise UserError(f'captions have type {type(captions).__name__}; give a list of strings')
    if not len(captions):
        raise UserError('there are no captions; give at least one')
    for number, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise UserError(f'caption {number} has type {type(caption).__name__}; give a string')
        if not caption.strip():
            raise UserError(f'caption {number} is empty; give at least one word')
    tokens = join([run.vocabulary.encode(caption) for caption in captions])
    longest = int(tokens.lengths.argmax())
    limit = run.model.text_format.max_length
    if limit is not None and tokens.lengths[longest] > limit:
        raise UserError(
            f'caption {longest} has {tokens.lengths[longest]} tokens, special tokens included, but the model reads '
            f'at most {limit}; shorten it'
        )
    return tokens


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
    return {
        side: jax.eval_shape(lambda v, x, m=method: model.apply(v, x, method=m), run.variables, example)
        for side, method, example in (('images', 'encode_image', image), ('captions', 'encode_text', text))
    }


def check(encoding: Encoding, side: str, expected: dict[str, chex.ArrayTree]) -> int:
    """Returns the number of items of a tree.

    Args:
      encoding: The tree.
      side: 'images' or 'captions'.
      expected: See `shapes`.

    Raises:
      UserError: If the tree lacks the structure or the vector size of a run's encodings, is complex, or has no item.
    """

    def fits(leaf: Any, expected_leaf: jax.ShapeDtypeStruct) -> bool:
        shape = getattr(leaf, 'shape', ())
        floating = jnp.issubdtype(expected_leaf.dtype, jnp.floating)
        same_size = not floating or shape[1:][-1:] == expected_leaf.shape[1:][-1:]
        return len(shape) == len(expected_leaf.shape) and same_size and not np.iscomplexobj(leaf)

    leaves, structure = jax.tree.flatten(encoding)
    expected_leaves, expected_structure = jax.tree.flatten(expected[side])
    if structure != expected_structure or not all(map(fits, leaves, expected_leaves)):
        method = 'encode_image' if side == 'images' else 'encode_text'
        raise UserError(f'{side} are not encodings of this run; make them with run.{method}')
    if not len(leaves[0]):
        raise UserError(f'there are no {side}; give at least one')
    return len(leaves[0])


def vector_key(run: Run) -> str:
    """Returns a hash of the model, its parameters, the precision, and the changes of the images that it reads."""
    evaluation = run.config['evaluation']
    arrays = hash_arrays(jax.tree.leaves(run.variables))
    described = f'{run.model!r} {evaluation["dtype"]} {evaluation["precision"]} {arrays}'
    if 'pixels' in run.model.reads:
        described += f' {transform_of(run)}'
    if run.feature_scale != 1:
        described += f' {run.feature_scale}'
    return hashlib.sha256(described.encode()).hexdigest()
