"""Synthetic negative captions that a matcher generates for images, in training and after it (Fan et al., 2022, 2.1)."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree, PRNGKey
from flax import struct

from jitm.devices.recompute import keep_within
from jitm.models import tiling
from jitm.models.joint import read_pairs
from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis import refill
from jitm.types import Batch, Count, Elements, Temperature, Texts


class Synthetic(struct.PyTreeNode):
    """M synthetic negative captions for each of B images.

    Attributes:
      ids: int32 [B, M, L], with the length of the image's own caption.
      refilled: bool [B, M, L], the token positions that were masked and refilled.
      valid: bool [B, M], the captions that may be used; the others are padding or were filtered out.
    """

    ids: Array
    refilled: Array
    valid: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthesis:
    """The generation and selection of synthetic negative captions.

    Attributes:
      generator: The name of the model whose `mlm` head refills masked captions: the one that trains, as published (a
        dynamic generator), or a frozen one (a static generator).
      num_samples: The number of captions sampled per masked view, L in the paper; 20 in the released code.
      temperature: The temperature tau of the word probabilities.
      num_hard: The number m of captions that are kept per image.
    """

    generator: str
    num_samples: Count
    temperature: Temperature
    num_hard: Count

    def choose(
        self,
        model: Matcher,
        variables: ArrayTree,
        generator: tuple[Matcher, ArrayTree],
        batch: Batch,
        keys: PRNGKey,
    ) -> Synthetic:
        """Generates captions for the B images of this device and keeps those that the model scores highest (2.1, 2.2).

        Args:
          model: The model that trains.
          variables: The parameters and statistics of the model.
          generator: The generator and its variables.
          batch: The B rows of this device.
          keys: [B], the random keys.
        """
        return self.select_hardest(model, variables, batch, self.generate(*generator, batch, keys))

    def generate(self, generator: Matcher, variables: ArrayTree, batch: Batch, keys: PRNGKey) -> Synthetic:
        """Refills all masked views (2.1) with the `mlm` head of the generator: `num_samples` captions for each view."""
        images = generator.apply(variables, batch.images, method='encode_image')

        def refill_views(key, image, ids, length, masked, captions_known):
            logits = read_captions(generator, variables, image, masked.ids, length, ('mlm',))['mlm']
            captions = refill.refill(logits, masked, self.num_samples, self.temperature, key)
            valid = refill.novel(captions, ids, captions_known) & refill.distinct(captions)
            return Synthetic(captions, jnp.repeat(masked.labelled, self.num_samples, axis=0), valid)

        views, existing = batch.drawn['masked']
        rows = keys, images, batch.texts.ids, batch.texts.lengths, views, existing
        return map_images(refill_views, rows, largest_array(generator, images, *views.ids.shape[1:], word_logits=True))

    def select_hardest(self, model: Matcher, variables: ArrayTree, batch: Batch, generated: Synthetic) -> Synthetic:
        """Keeps the m valid captions that the model scores highest with their image (2.2), the highest first."""
        images = model.apply(variables, batch.images, method='encode_image')

        def rank(image, length, generated):
            scores = read_captions(model, variables, image, generated.ids, length)['rank']
            index, valid = refill.hardest(scores, generated.valid, self.num_hard)
            return Synthetic(generated.ids[index], generated.refilled[index], valid)

        rows = images, batch.texts.lengths, generated
        return map_images(rank, rows, largest_array(model, images, *generated.ids.shape[1:]))


def read_captions(
    model: Matcher,
    variables: ArrayTree,
    image: Encoding,
    ids: Array,
    length: Array,
    heads: Sequence[str] = (),
    key: PRNGKey | None = None,
) -> dict[str, Array]:
    """Reads an image with each of N captions of equal length.

    Args:
      model: A matcher; with heads, one that reads pairs.
      variables: The parameters and statistics of the matcher.
      image: An encoded image, leaves without the image axis.
      ids: int [N, L].
      length: int [], the number of token positions of each caption that are not padding.
      heads: The heads to evaluate, on all captions at once; if empty, only `rank`, on a tile of captions at a time.
      key: The random key of dropout in training; None in evaluation mode.

    Returns:
      The output [N, ...] of each head by its name; see `JointEncoder.read_pairs`.
    """
    train = key is not None

    def read(matcher):
        texts = matcher.encode_text(Texts(ids, jnp.full(len(ids), length)), train)
        images = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ids), *x.shape)), image)
        if heads:
            return read_pairs(matcher, images, texts, heads, train)
        return {'rank': matcher.similarity_pairwise(images, texts, train)}

    return model.apply(variables, method=read, rngs={'dropout': key} if train else {})


def largest_array(
    model: Matcher, images: Encoding, num_captions: int, length: int, *, word_logits: bool = False
) -> int:
    """Returns the floats of the largest array while one image is read with captions of `length` token positions.

    With `word_logits`, a head predicts a word at each token position.
    """
    texts = Elements(jnp.zeros((num_captions, length, 1)), jnp.ones((num_captions, length), bool))
    floats = num_captions * model.floats_per_pair(images, texts)
    return max(floats, num_captions * length * model.vocab_size) if word_logits else floats


def map_images(function: Callable, rows: Sequence[ArrayTree], floats: int) -> ArrayTree:
    """Applies `function(*row)`, whose largest array has `floats` floats, to as many rows at once as memory allows."""
    function = keep_within(0, function)  # what a loop in `function` keeps would be kept for each row
    return tiling.map_tiles(lambda items: jax.vmap(function)(*items), rows, tiling.pairs_at_once(floats))
