"""Models that read a caption together with an image: their interface, and the common part of those that use a BERT."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import ArgumentError, UserError, check_choice
from jitm.layers.transformer import BERT, size_named
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher, as_function
from jitm.types import DTYPES, Elements, Images, Rate


class JointEncoder(Matcher):
    """Reads each pair with one transformer, whose states heads turn into a score and predictions for the words.

    A model adds `joint_states`, `apply_head` and `floats_per_pair` and has an attribute `heads`, the names of its heads
    besides `rank`. The parameters of head `x` are in the module `x_head`.
    """

    head_sources = MappingProxyType({})  # head -> the head that it is initialized from

    def read_pairs(
        self, images: Encoding, texts: Encoding, heads: Sequence[str], train: bool = False
    ) -> dict[str, Array]:
        """Reads image n together with text n, without tiling, and applies heads.

        Returns:
          The output of each head, for texts of L token positions. `rank`: scores [N]. `itm`: logits [N, 2], class 1 for
          a match. `mlm`: logits [N, L, V] of the word at each position. `discriminate`: logits [N, L, 2], class 1 if
          the word matches the image. `correct`: logits [N, L, V] of the word that matches the image.

        Raises:
          ArgumentError: If the model lacks one of the heads.
        """
        for head in heads:
            if head not in ('rank', *self.heads):
                raise ArgumentError('heads', f"is {self.heads}, but '{head}' is needed: add it, or use another model")
        states, pooled = self.joint_states(images, texts, train)
        return {head: self.apply_head(head, states, pooled, train) for head in heads}

    def joint_states(self, images: Encoding, texts: Encoding, train: bool = False) -> tuple[Array, Array]:
        """Reads text n together with image n: the last states of its words [N, L, H], and the pooled ones [N, H]."""
        raise NotImplementedError

    def apply_head(self, head: str, states: Array, pooled: Array, train: bool) -> Array:
        """Applies a head to the results of `joint_states`; see `read_pairs`."""
        raise NotImplementedError

    def similarity(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores every image with every text: [I, T]."""
        shape = tuple(len(jax.tree.leaves(side)[0]) for side in (images, texts))
        rows, columns = jnp.indices(shape)
        return self._score_in_tiles(images, texts, rows.ravel(), columns.ravel(), train).reshape(shape)

    def similarity_pairwise(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores image n with text n: [N]."""
        index = jnp.arange(len(jax.tree.leaves(images)[0]))
        return self._score_in_tiles(images, texts, index, index, train)

    def score_pairs(self, images: Encoding, texts: Encoding, train: bool = False) -> Array:
        """Scores image n with text n without tiling: [N]."""
        return self.read_pairs(images, texts, ('rank',), train)['rank']

    def _score_in_tiles(self, images: Encoding, texts: Encoding, rows: Array, columns: Array, train: bool) -> Array:
        """Scores image rows[n] with text columns[n], a tile of pairs at a time: [N]."""
        score, variables = as_function(self, 'score_pairs', images, texts)
        key = self.make_rng('dropout') if train else None

        def tile(pairs):
            number, row, column = pairs
            rngs = {'dropout': jax.random.fold_in(key, number[0])} if train else {}
            sides = jax.tree.map(lambda x: x[row], images), jax.tree.map(lambda x: x[column], texts)
            return score(variables, *sides, train, rngs=rngs)

        size = tiling.pairs_at_once(self.floats_per_pair(images, texts))
        return tiling.map_tiles(tile, (jnp.arange(len(rows)), rows, columns), size)

    def is_head(self, path: Sequence[str]) -> bool:
        """Whether a parameter, given by its path, belongs to a head."""
        return path[0].endswith('_head')

    def add_heads(self, params: Mapping[tuple[str, ...], Array]) -> dict[tuple[str, ...], Array]:
        """Adds the heads that trained parameters, by their paths, lack: copies of others, as `head_sources` states."""
        names = {path[0] for path in params}
        complete = dict(params)
        for head, source in self.head_sources.items():
            if head in self.heads and f'{head}_head' not in names:
                copied = {path[1:]: value for path, value in params.items() if path[0] == f'{source}_head'}
                complete |= {(f'{head}_head', *path): value for path, value in copied.items()}
        return complete


def has_heads(model: Matcher, heads: Sequence[str]) -> bool:
    """Whether a model is a joint encoder with these heads."""
    return isinstance(model, JointEncoder) and set(heads) <= {'rank', *model.heads}


def read_pairs(
    model: Matcher, images: Encoding, texts: Encoding, heads: Sequence[str], train: bool = False
) -> dict[str, Array]:
    """Applies `JointEncoder.read_pairs`; the only head of any other model is `rank`, its pairwise similarity.

    Raises:
      UserError: If the model reads no pairs.
      ArgumentError: If it lacks one of the heads.
    """
    if isinstance(model, JointEncoder):
        return model.read_pairs(images, texts, heads, train)
    if set(heads) != {'rank'}:
        raise UserError(f'{type(model).__name__} does not read words together with an image')
    return {'rank': model.similarity_pairwise(images, texts, train)}


class JointBERT(JointEncoder):
    """Reads the words and regions of a pair with BERT's blocks and scores it by the state of the first word.

    The score is a logit in evaluation, which gives the same ranks, and its sigmoid in training. Pairs with the same
    image share the dropout of its embedding. A model adds `encode_image`, `encode_text` and `apply_head`, and, if its
    encodings are not Elements, `join` and `sequence_length`.

    Attributes:
      vocab_size: The number V of word pieces, or of words if trained from scratch.
      size: The name of the sizes of the BERT, see `size_named`.
      dropout: The rate of dropout of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: The type of embeddings and blocks, 'float32' or 'bfloat16'; parameters, pooler and heads are float32.
    """

    vocab_size: int
    size: str
    dropout: Rate
    dtype: str

    def setup(self):
        """Checks the options and creates the layers."""
        check_choice(self.dtype, DTYPES, 'dtype')
        size = size_named(self.size)
        self.bert = BERT(self.vocab_size, size, self.dropout, DTYPES[self.dtype])
        self.pooler = nn.Dense(size.hidden, kernel_init=size.kernel_init)

    def check_images(self, images: Images) -> None:
        """Raises a UserError if images have several views, a ValueError if they lack inputs of the model."""
        name = type(self).__name__
        if images.kept is not None:
            raise UserError(f"config key 'augmentation.num_views' must be 1: {name} reads one view of each image")
        for field in self.reads:
            if getattr(images, field) is None:
                raise ValueError(f'{name} reads the {field} of images: set images.{field}')

    def join(self, images: Encoding, texts: Encoding, train: bool = False) -> tuple[Elements, Elements]:
        """Returns the embedded words of text n [N, K, H], and tags if they follow, and the regions of image n."""
        return texts, images

    def sequence_length(self, images: Encoding, texts: Encoding) -> int:
        """Returns the length of the sequence that is read for a pair, its padding included."""
        return images.mask.shape[1] + texts.mask.shape[1]

    def joint_states(self, images: Encoding, texts: Encoding, train: bool = False) -> tuple[Array, Array]:
        """Reads text n together with image n; see `JointEncoder`. States are float32, zero where padded."""
        words, regions = self.join(images, texts, train)
        tokens = jnp.concatenate([words.vectors, regions.vectors], axis=1)
        states = self.bert.encoder(tokens, jnp.concatenate([words.mask, regions.mask], axis=1), train)
        num_words = texts.mask.shape[1]
        states = states[:, :num_words].astype(jnp.float32)
        return jnp.where(words.mask[:, :num_words, None], states, 0), jnp.tanh(self.pooler(states[:, 0]))

    def training_scores(self, scores: Array) -> Array:
        """Returns the sigmoid of logits."""
        return nn.sigmoid(scores)

    def floats_per_pair(self, images: Encoding, texts: Encoding) -> int:
        """Returns the size of the hidden layer or of the attention weights of a block, whichever is larger."""
        length = self.sequence_length(images, texts)
        size = size_named(self.size)
        return length * max(size.mlp_dim, size.heads * length)


def masked_elements(vectors: Array, mask: Array) -> Elements:
    """Returns elements [N, K, D] that are zero where they are padded."""
    return Elements(jnp.where(mask[..., None], vectors, 0), mask)
