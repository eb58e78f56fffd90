"""Algorithm 1 of TAGS-DC within a step: sentences masked, refilled, told from true ones, and corrected (paper 001)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm import generation, tiles
from jitm.errors import UserError
from jitm.matcher import Encoding, Matcher
from jitm.training.objective import Term
from jitm.training.sources import ListedScores
from jitm.types import Batch, Elements, Texts, TokenPredictions

GENERATED = 'generated'  # the ranking of an image's own sentence against those written for it
MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # of terms of generated sentences


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
        return _map(one, keys, rows, batch.masked.ids[0].size * writer.vocab_size)


def score_synthetic(
    matcher: Matcher, images: Encoding, batch: Batch, synthetic: Synthetic, terms: Mapping[str, Term]
) -> tuple[ListedScores, dict[str, chex.Array]]:
    """Scores each image with its own and with its wrong sentences, in training, and reads the words of the wrong ones.

    Args:
      matcher: in training.
      images: of the batch, encoded.
      batch: this device's rows.
      synthetic: wrong sentences of these images.
      terms: token terms of wrong sentences.

    Returns:
      The scores, and the loss [B] of each term.
    """
    model, variables = matcher.unbind()
    heads = [HEADS[term.predictions] for term in terms.values()]

    def one(key, image, ids, length, synthetic):
        sentences = jnp.concatenate([ids[None], synthetic.ids])
        said = read_sentences(model, variables, image, sentences, length, ('rank', *heads) if heads else (), key)
        real = synthetic.there[:, None] & (jnp.arange(len(ids)) < length)
        wanted = {
            'word_discrimination': ((synthetic.ids == ids).astype(jnp.int32), real),
            'word_correction': (jnp.broadcast_to(ids, real.shape), real & synthetic.labelled),
        }
        predictions = {name: _one_text(said[HEADS[name]][1:], *wanted[name]) for name in HEADS if HEADS[name] in said}
        return said['rank'], {name: term.per_text(predictions)[0] for name, term in terms.items()}

    rows = images, batch.texts.ids, batch.texts.lengths, synthetic
    sentences = synthetic.ids[0]
    floats = _floats(model, images, sentences, 'correct' in heads) if heads else sentences.size
    scores, losses = _map(one, _keys(matcher, batch), rows, floats)
    return ListedScores(scores, synthetic.there), losses


def masked_losses(matcher: Matcher, images: Encoding, batch: Batch, terms: Mapping[str, Term]) -> dict[str, chex.Array]:
    """The loss [B] of each term of masked words, over all variants of a text, in training; see `score_synthetic`."""
    model, variables = matcher.unbind()

    def one(key, image, ids, length, masked):
        logits = read_sentences(model, variables, image, masked.ids, length, ('mlm',), key)['mlm']
        predictions = {MASKED: _one_text(logits, jnp.broadcast_to(ids, masked.ids.shape), masked.labelled)}
        return {name: term.per_text(predictions)[0] for name, term in terms.items()}

    rows = images, batch.texts.ids, batch.texts.lengths, batch.masked
    floats = _floats(model, images, batch.masked.ids[0], True)
    return _map(one, _keys(matcher, batch), rows, floats)


def _floats(model: Matcher, images: Encoding, sentences: chex.Array, words: bool) -> int:
    """Floats of the largest array while an image's sentences [N, L] are read; with `words`, which stands where."""
    count, length = sentences.shape
    texts = Elements(jnp.zeros((count, length, 1)), jnp.ones((count, length), bool))
    return max(count * model.floats_per_pair(images, texts), sentences.size * model.vocab_size if words else 0)


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


def _keys(matcher: Matcher, batch: Batch) -> chex.PRNGKey:
    """Of the dropout for each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def _map(one: Callable, keys: chex.PRNGKey, rows: Sequence[chex.ArrayTree], floats: int) -> chex.ArrayTree:
    """Applies `one(key, *row)`, whose largest array has so many floats, to as many rows at a time as memory holds."""
    return tiles.map_tiles(lambda items: jax.vmap(one)(*items), (keys, *rows), tiles.tile_edge(floats) ** 2)


def _one_text(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> TokenPredictions:
    """The predictions [N, L] of all variants of a text as those of one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
