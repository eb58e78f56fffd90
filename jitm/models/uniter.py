"""One transformer over the words of a text and the regions of an image (UNITER, Chen et al., 2020)."""

from collections.abc import Sequence
from types import MappingProxyType

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError, check_choice, check_rate
from jitm.layers.text import DTYPES
from jitm.layers.transformer import BERT, SIZES, BERTSize, TokenHead, layer_norm
from jitm.models import tiling
from jitm.models.matcher import Matcher
from jitm.types import Elements, Images, TextFormat, Texts

HEADS = ('itm', 'mlm', 'discriminate', 'correct')


class RegionEmbeddings(nn.Module):
    """drop(LN(LN(W_f f) + LN(W_l l) + type)) of features f at locations l (section 3.1).

    Attributes:
      size: of the BERT.
      dropout: rate.
      dtype: of the computation.
    """

    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType

    @nn.compact
    def __call__(self, images: Images, token_type: chex.Array, train: bool = False) -> chex.Array:
        """Embeds the regions of I images, of the type [H]: [I, R, H]."""
        total = token_type
        for name, x in (('features', images.regions), ('locations', images.locations)):
            dense = nn.Dense(self.size.hidden, dtype=self.dtype, kernel_init=self.size.kernel_init, name=name)
            total += layer_norm(name=f'{name}_norm')(dense(x.astype(jnp.float32)))
        embedded = layer_norm(self.dtype, 'norm')(total)
        return nn.Dropout(self.dropout, deterministic=not train)(embedded)


def _last_columns(size: BERTSize, key: chex.PRNGKey, columns: int) -> nn.initializers.Initializer:
    """Draws so many columns from its own key, and gives the last of them: parameters that share it begin alike."""

    def init(_: chex.PRNGKey, shape: tuple[int, ...], dtype: chex.ArrayDType = jnp.float32) -> chex.Array:
        return size.kernel_init(key, (shape[0], columns), dtype)[:, -shape[1] :]

    return init


class UNITER(Matcher):
    """Words and regions are embedded, each pair's together go through BERT's blocks, the first state gives the score.

    The score is the logit in evaluation, which ranks alike, and its sigmoid in training, as released. Pairs with the
    same image or text share the dropout of its embedding, and nothing else. What only pre-training needs (the embedding
    of masked regions, heads for these) is not there.

    Attributes:
      vocab_size: V, of word pieces, or of words if it is trained from scratch.
      size: 'tiny', 'base' or 'large', see `jitm.layers.transformer`.
      dropout: rate, of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: of embeddings and blocks, 'float32' or 'bfloat16'; parameters, pooler and heads are float32.
      heads: those of `HEADS` that it has besides `rank`, for token terms.
    """

    vocab_size: int
    size: str
    dropout: float
    dtype: str
    heads: tuple[str, ...]

    text_format = TextFormat(None, BERTSize.max_positions)
    reads_locations = True
    begins_as = MappingProxyType({'correct_head': 'mlm_head', 'discriminate_head': 'itm_head'})

    def setup(self):
        """Makes the layers."""
        check_choice(self.size, SIZES, 'model.size')
        check_choice(self.dtype, DTYPES, 'model.dtype')
        check_rate(self.dropout, 'model.dropout')
        for head in self.heads:
            check_choice(head, HEADS, 'model.heads')
        size, dtype = SIZES[self.size], DTYPES[self.dtype]
        self.bert = BERT(self.vocab_size, size, self.dropout, dtype)
        self.regions = RegionEmbeddings(size, self.dropout, dtype)
        self.pooler = nn.Dense(size.hidden, kernel_init=size.kernel_init)
        # All heads that tell matches begin as the matching head (rank as its row of class 1), both of words alike.
        keys = jax.random.split(self.make_rng('params') if self.is_initializing() else jax.random.key(0))
        matching, words = _last_columns(size, keys[0], 2), _last_columns(size, keys[1], size.hidden)
        self.rank_head = nn.Dense(1, kernel_init=matching)
        self.itm_head = nn.Dense(2, kernel_init=matching)
        self.discriminate_head = nn.Dense(2, kernel_init=matching)
        self.mlm_head = TokenHead(words)
        self.correct_head = TokenHead(words)

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Embeds [I, R, F] regions and their locations as [I, R, H]."""
        if images.kept is not None:
            raise UserError("config key 'augmentation.num_views' must be 1 for UNITER: it reads each image once")
        if images.locations is None:
            raise UserError('UNITER reads where regions are: give the images their locations')
        token_type = self.bert.embeddings.token_types(jnp.ones((), jnp.int32))
        return _elements(self.regions(images, token_type, train), images.mask)

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Embeds [T, L] word pieces as [T, L, H]."""
        return _elements(self.bert.embeddings(texts.ids, train), texts.mask)

    def joint_states(self, images: Elements, texts: Elements, train: bool = False) -> tuple[chex.Array, chex.Array]:
        """Reads text n together with image n.

        Args:
          images: N of them, embedded.
          texts: N of them, embedded.
          train: drops out.

        Returns:
          The last states of the words, float32 [N, L, H], zero where padded, and the pooled first states [N, H].
        """
        tokens = jnp.concatenate([texts.vectors, images.vectors], axis=1)
        states = self.bert.encoder(tokens, jnp.concatenate([texts.mask, images.mask], axis=1), train)
        states = states[:, : texts.mask.shape[1]].astype(jnp.float32)
        return jnp.where(texts.mask[..., None], states, 0), jnp.tanh(self.pooler(states[:, 0]))

    def rank(self, pooled: chex.Array, train: bool = False) -> chex.Array:
        """How well pairs match, from their pooled states [N, H]: scores [N]."""
        logits = self.rank_head(pooled)[:, 0]
        return nn.sigmoid(logits) if train else logits

    def itm(self, pooled: chex.Array) -> chex.Array:
        """Whether pairs match, from their pooled states [N, H]: logits [N, 2], class 1 for a match."""
        return self.itm_head(pooled)

    def mlm(self, states: chex.Array) -> chex.Array:
        """Which word stands at each place, from states [N, L, H]: logits [N, L, V]."""
        return self.mlm_head(states, self.bert.embeddings.words.embedding)

    def discriminate(self, states: chex.Array) -> chex.Array:
        """Whether each word fits the image (TAGS-DC), from states [N, L, H]: logits [N, L, 2], class 1 if it does."""
        return self.discriminate_head(states)

    def correct(self, states: chex.Array) -> chex.Array:
        """Which word should stand at each place (TAGS-DC), from states [N, L, H]: logits [N, L, V]."""
        return self.correct_head(states, self.bert.embeddings.words.embedding)

    def read_pairs(
        self, images: Elements, texts: Elements, heads: Sequence[str], train: bool = False
    ) -> dict[str, chex.Array]:
        """Reads image n with text n, all at once, and gives what the heads say: `rank` or those of `HEADS`."""
        for head in heads:
            if head not in ('rank', *self.heads):
                raise UserError(f"config key 'model.heads' is {self.heads}, but '{head}' is needed: add it")
        states, pooled = self.joint_states(images, texts, train)
        inputs = {'rank': (pooled, train), 'itm': (pooled,)}
        return {head: getattr(self, head)(*inputs.get(head, (states,))) for head in heads}

    def score_pairs(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores image n with text n, all at once: [N]."""
        return self.read_pairs(images, texts, ('rank',), train)['rank']

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """The hidden layer or the attention of a block."""
        length, size = images.mask.shape[1] + texts.mask.shape[1], SIZES[self.size]
        return length * max(size.mlp_dim, size.heads * length)

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores every image with every text: [I, T]."""
        shape = len(images.mask), len(texts.mask)
        rows, columns = jnp.indices(shape)
        return self._in_turn(images, texts, rows.ravel(), columns.ravel(), train).reshape(shape)

    def similarity_pairwise(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores image n with text n: [N]."""
        index = jnp.arange(len(images.mask))
        return self._in_turn(images, texts, index, index, train)

    def _in_turn(
        self, images: Elements, texts: Elements, rows: chex.Array, columns: chex.Array, train: bool
    ) -> chex.Array:
        """Scores image rows[n] with text columns[n], a tile of pairs at a time: [N]."""
        score, variables = self._block('score_pairs', images, texts)
        key = self.make_rng('dropout') if train else None

        def tile(pairs: tuple[chex.Array, ...]) -> chex.Array:
            number, row, column = pairs
            rngs = {'dropout': jax.random.fold_in(key, number[0])} if train else {}
            sides = jax.tree.map(lambda x: x[row], images), jax.tree.map(lambda x: x[column], texts)
            return score(variables, *sides, train, rngs=rngs)

        size = tiling.tile_edge(self.floats_per_pair(images, texts)) ** 2
        return tiling.map_tiles(tile, (jnp.arange(len(rows)), rows, columns), size)

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes and scores every image with every text: float32 [I, T]; at initialisation touches the heads too."""
        if self.is_initializing():
            encoded = self.encode_image(images), self.encode_text(texts)
            self.read_pairs(*jax.tree.map(lambda x: x[:1], encoded), self.heads)
        return super().__call__(images, texts, train)


def _elements(vectors: chex.Array, mask: chex.Array) -> Elements:
    return Elements(jnp.where(mask[..., None], vectors, 0), mask)
