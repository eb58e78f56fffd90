"""Wrong sentences that a matcher writes for images, in training and after (TAGS, paper 001, section 2.1)."""

import dataclasses
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm.errors import UserError
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis import refill
from jitm.types import Batch, Elements, Texts


class Synthetic(struct.PyTreeNode):
    """Wrong sentences for each of B images.

    Attributes:
      ids: int32 [B, M, L], as long as the image's own sentence.
      labelled: bool [B, M, L], the places that were refilled.
      there: bool [B, M], which of these there are.
    """

    ids: chex.Array
    labelled: chex.Array
    there: chex.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthesis:
    """How wrong sentences are written.

    Attributes:
      generator: the member whose `mlm` head writes them: the one that trains, as published (a dynamic generator), or
        one that stays as it is (a static one).
      num_samples: of each masked variant of a sentence, L in the paper; 20 as released.
      temperature: tau of the words' probabilities.
      num_hard: m, how many sentences are kept.
    """

    generator: str
    num_samples: int
    temperature: float
    num_hard: int

    def __post_init__(self):
        for key in ('num_samples', 'num_hard'):
            if getattr(self, key) < 1:
                raise UserError(f"config key 'synthesis.{key}' is {getattr(self, key)}; it must be at least 1")
        if not self.temperature > 0:
            raise UserError(f"config key 'synthesis.temperature' is {self.temperature}; it must be above 0")

    def choose(
        self,
        model: Matcher,
        variables: chex.ArrayTree,
        generator: tuple[Matcher, chex.ArrayTree],
        batch: Batch,
        keys: chex.PRNGKey,
    ) -> Synthetic:
        """Writes sentences for this device's B images, and takes those that the model finds best (2.1 and 2.2).

        Args:
          model: that is to learn from them, in evaluation mode.
          variables: its parameters and statistics.
          generator: the model that writes and its variables, in evaluation mode too.
          batch: this device's rows.
          keys: [B], of the draws for each image.

        Returns:
          The sentences, without gradient.
        """
        return self.keep_hardest(model, variables, batch, self.write(*generator, batch, keys))

    def write(self, generator: Matcher, variables: chex.ArrayTree, batch: Batch, keys: chex.PRNGKey) -> Synthetic:
        """Refills all masked variants (2.1): K samples for each image, of which those are there that may be kept."""
        images = generator.apply(variables, batch.images, method='encode_image')

        def one(key, image, ids, length, masked, known):
            logits = read_sentences(generator, variables, image, masked.ids, length, ('mlm',))['mlm']
            sentences = refill.refill(logits, masked, self.num_samples, self.temperature, key)
            allowed = refill.novel(sentences, ids, known) & refill.distinct(sentences)
            return Synthetic(sentences, jnp.repeat(masked.labelled, self.num_samples, axis=0), allowed)

        rows = keys, images, batch.texts.ids, batch.texts.lengths, batch.masked, batch.caption_words
        return map_images(one, rows, largest_array(generator, images, *batch.masked.ids.shape[1:], words=True))

    def keep_hardest(self, model: Matcher, variables: chex.ArrayTree, batch: Batch, written: Synthetic) -> Synthetic:
        """Takes the m of the sentences there that score highest with their image (2.2)."""
        images = model.apply(variables, batch.images, method='encode_image')

        def one(image, length, written):
            scores = read_sentences(model, variables, image, written.ids, length)['rank']
            index, there = refill.hardest(scores, written.there, self.num_hard)
            return Synthetic(written.ids[index], written.labelled[index], there)

        rows = images, batch.texts.lengths, written
        return map_images(one, rows, largest_array(model, images, *written.ids.shape[1:]))


def read_sentences(
    model: Matcher,
    variables: chex.ArrayTree,
    image: Encoding,
    ids: chex.Array,
    length: chex.Array,
    heads: Sequence[str] = (),
    key: chex.PRNGKey | None = None,
) -> dict[str, chex.Array]:
    """Reads an image with each of N sentences.

    Args:
      model: a matcher; with heads one that reads pairs.
      variables: its parameters and statistics.
      image: encoded, its leaves without the axis of images.
      ids: int [N, L].
      length: int [], of all of them.
      heads: whose answers are wanted, of all sentences at once; without any `rank`, of a tile of sentences at a time.
      key: of the dropout in training; None in evaluation mode.

    Returns:
      Head -> what it says of each pair, leaves [N, ...].
    """
    train = key is not None

    def read(matcher: Matcher) -> dict[str, chex.Array]:
        texts = matcher.encode_text(Texts(ids, jnp.full(len(ids), length)), train)
        images = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ids), *x.shape)), image)
        if heads:
            return matcher.read_pairs(images, texts, heads, train)
        return {'rank': matcher.similarity_pairwise(images, texts, train)}

    return model.apply(variables, method=read, rngs={'dropout': key} if train else {})


def largest_array(model: Matcher, images: Encoding, sentences: int, length: int, words: bool = False) -> int:
    """Floats of the largest array while an image is read with so many sentences; with `words`, which stands where."""
    texts = Elements(jnp.zeros((sentences, length, 1)), jnp.ones((sentences, length), bool))
    floats = sentences * model.floats_per_pair(images, texts)
    return max(floats, sentences * length * model.vocab_size) if words else floats


def map_images(one: Callable, rows: Sequence[chex.ArrayTree], floats: int) -> chex.ArrayTree:
    """Applies `one(*row)`, whose largest array has so many floats, to as many images at a time as memory holds."""
    return tiling.map_tiles(lambda items: jax.vmap(one)(*items), rows, tiling.tile_edge(floats) ** 2)
