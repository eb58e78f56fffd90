"""Wrong sentences that a matcher writes for images, in training and after (TAGS, paper 001, section 3.2)."""

import dataclasses
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm import generation, tiles
from jitm.errors import UserError
from jitm.matcher import Encoding, Matcher
from jitm.types import Batch, Texts


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
      samples: of each masked variant of a sentence, L in the paper; 20 as released.
      temperature: tau of the words' probabilities.
      hardest: m, how many sentences are kept.
    """

    generator: str
    samples: int
    temperature: float
    hardest: int

    def __post_init__(self):
        for key in ('samples', 'hardest'):
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
        """Writes sentences for this device's B images, and takes those that the model finds best (section 3.2).

        Args:
          model: that is to learn from them, in evaluation mode.
          variables: its parameters and statistics.
          generator: the model that writes and its variables, in evaluation mode too.
          batch: this device's rows.
          keys: [B], of the draws for each image.

        Returns:
          The sentences, without gradient.
        """
        writer, of_writer = generator
        shown = writer.apply(of_writer, batch.images, method='encode_image')
        images = model.apply(variables, batch.images, method='encode_image')

        def one(key, shown, image, ids, length, masked, known):
            logits = read_sentences(writer, of_writer, shown, masked.ids, length, ('mlm',))['mlm']
            sentences = generation.refill(logits, masked, self.samples, self.temperature, key)
            scores = read_sentences(model, variables, image, sentences, length)['rank']
            allowed = generation.novel(sentences, ids, known) & generation.distinct(sentences)
            index, there = generation.hardest(scores, allowed, self.hardest)
            return Synthetic(sentences[index], jnp.repeat(masked.labelled, self.samples, axis=0)[index], there)

        rows = shown, images, batch.texts.ids, batch.texts.lengths, batch.masked, batch.caption_words
        return map_images(one, keys, rows, batch.masked.ids[0].size * writer.vocab_size)


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
      heads: whose answers are wanted; `rank` if there are none, which every matcher gives.
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


def map_images(one: Callable, keys: chex.PRNGKey, rows: Sequence[chex.ArrayTree], floats: int) -> chex.ArrayTree:
    """Applies `one(key, *row)`, whose largest array has so many floats, to as many images at a time as memory holds."""
    return tiles.map_tiles(lambda items: jax.vmap(one)(*items), (keys, *rows), tiles.tile_edge(floats) ** 2)
