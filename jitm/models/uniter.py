"""One transformer over the words of a text and the regions of an image (UNITER; Chen et al., 2020b)."""

from collections.abc import Sequence
from types import MappingProxyType

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import check_choice, check_rate
from jitm.layers.transformer import BERT, SIZES, BERTSize, TokenHead, layer_norm
from jitm.models.matcher import JointEncoder
from jitm.types import DTYPES, Elements, Images, TextFormat, Texts

HEADS = ('itm', 'mlm', 'discriminate', 'correct')
# Each head of these is initialized as a copy of another one: rank as the row of class 1, the others as they are. It
# holds for random parameters, for a run that lacks the head and for published weights that lack it.
HEAD_SOURCES = MappingProxyType({'rank': 'itm', 'discriminate': 'itm', 'correct': 'mlm'})


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
        """Embeds the regions of I images, with the type embedding [H]: [I, R, H]."""
        total = token_type
        for name, x in (('features', images.regions), ('locations', images.locations)):
            dense = nn.Dense(self.size.hidden, dtype=self.dtype, kernel_init=self.size.kernel_init, name=name)
            total += layer_norm(name=f'{name}_norm')(dense(x.astype(jnp.float32)))
        embedded = layer_norm(self.dtype, 'norm')(total)
        return nn.Dropout(self.dropout, deterministic=not train)(embedded)


def _last_columns(size: BERTSize, key: chex.PRNGKey, columns: int) -> nn.initializers.Initializer:
    """Returns an initializer that samples this number of columns from a fixed key and returns the last of them."""

    # Flax gives every parameter its own key. Heads that must be equal at initialization need a common key instead, and
    # a head with one output (rank) must equal the last output of a head with two (itm): hence the last columns.
    def init(_: chex.PRNGKey, shape: tuple[int, ...], dtype: chex.ArrayDType = jnp.float32) -> chex.Array:
        return size.kernel_init(key, (shape[0], columns), dtype)[:, -shape[1] :]

    return init


class UNITER(JointEncoder):
    """Embeds words and regions, reads those of a pair with BERT's blocks and scores the first state.

    The score is a logit in evaluation, which gives the same ranks, and its sigmoid in training, as released. Pairs with
    the same image or text share the dropout of its embedding, and no other dropout. Parts that only pre-training needs
    (the embedding of masked regions and their heads) are left out.

    Attributes:
      vocab_size: V, of word pieces, or of words if trained from scratch.
      size: 'tiny', 'base' or 'large', see `jitm.layers.transformer`.
      dropout: rate, of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: of embeddings and blocks, 'float32' or 'bfloat16'; parameters, pooler and heads are float32.
      heads: heads of `HEADS` that it has besides `rank`, for token terms.
    """

    vocab_size: int
    size: str
    dropout: float
    dtype: str
    heads: tuple[str, ...]

    text_format = TextFormat(None, BERTSize.max_positions)
    reads = ('regions', 'locations')
    head_sources = HEAD_SOURCES

    def setup(self):
        """Checks the options and creates the layers."""
        check_choice(self.size, SIZES, 'size')
        check_choice(self.dtype, DTYPES, 'dtype')
        check_rate(self.dropout, 'dropout')
        for head in self.heads:
            check_choice(head, HEADS, 'heads')
        size, dtype = SIZES[self.size], DTYPES[self.dtype]
        self.bert = BERT(self.vocab_size, size, self.dropout, dtype)
        self.regions = RegionEmbeddings(size, self.dropout, dtype)
        self.pooler = nn.Dense(size.hidden, kernel_init=size.kernel_init)
        keys = jax.random.split(self.make_rng('params') if self.is_initializing() else jax.random.key(0))
        kernels = {'itm': _last_columns(size, keys[0], 2), 'mlm': _last_columns(size, keys[1], size.hidden)}
        kernels |= {head: kernels[source] for head, source in HEAD_SOURCES.items()}
        self.rank_head = nn.Dense(1, kernel_init=kernels['rank'])
        self.itm_head = nn.Dense(2, kernel_init=kernels['itm'])
        self.discriminate_head = nn.Dense(2, kernel_init=kernels['discriminate'])
        self.mlm_head = TokenHead(kernels['mlm'])
        self.correct_head = TokenHead(kernels['correct'])

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Embeds [I, R, F] regions and their locations as [I, R, H]."""
        if images.kept is not None:
            raise ValueError('UNITER takes one view of each image, so num_views must be 1')
        if images.locations is None:
            raise ValueError('UNITER reads the locations of regions: set images.locations')
        token_type = self.bert.embeddings.token_types(jnp.ones((), jnp.int32))
        return _elements(self.regions(images, token_type, train), images.mask)

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Embeds [T, L] word pieces as [T, L, H]."""
        return _elements(self.bert.embeddings(texts.ids, train), texts.mask)

    def joint_states(self, images: Elements, texts: Elements, train: bool = False) -> tuple[chex.Array, chex.Array]:
        """Reads text n together with image n.

        Args:
          images: N embedded images.
          texts: N embedded texts.
          train: applies dropout.

        Returns:
          The last states of the words, float32 [N, L, H], zero where padded, and the pooled first states [N, H].
        """
        tokens = jnp.concatenate([texts.vectors, images.vectors], axis=1)
        states = self.bert.encoder(tokens, jnp.concatenate([texts.mask, images.mask], axis=1), train)
        states = states[:, : texts.mask.shape[1]].astype(jnp.float32)
        return jnp.where(texts.mask[..., None], states, 0), jnp.tanh(self.pooler(states[:, 0]))

    def rank(self, pooled: chex.Array, train: bool = False) -> chex.Array:
        """Scores pairs [N] from their pooled states [N, H]."""
        logits = self.rank_head(pooled)[:, 0]
        return nn.sigmoid(logits) if train else logits

    def itm(self, pooled: chex.Array) -> chex.Array:
        """Predicts matches from pooled states [N, H]: logits [N, 2], class 1 for a match."""
        return self.itm_head(pooled)

    def mlm(self, states: chex.Array) -> chex.Array:
        """Predicts the word at each position from states [N, L, H]: logits [N, L, V]."""
        return self.mlm_head(states, self.bert.embeddings.words.embedding)

    def discriminate(self, states: chex.Array) -> chex.Array:
        """Predicts which words match the image from states [N, L, H]: logits [N, L, 2] (TAGS-DC; Fan et al., 2022)."""
        return self.discriminate_head(states)

    def correct(self, states: chex.Array) -> chex.Array:
        """Predicts the matching word at each position from states [N, L, H]: logits [N, L, V] (TAGS-DC)."""
        return self.correct_head(states, self.bert.embeddings.words.embedding)

    def read_pairs(
        self, images: Elements, texts: Elements, heads: Sequence[str], train: bool = False
    ) -> dict[str, chex.Array]:
        """Reads image n with text n, without tiling, and applies heads: `rank` or those of `HEADS`."""
        for head in heads:
            if head not in ('rank', *self.heads):
                raise ValueError(f"heads is {self.heads}, but '{head}' is needed: add it")
        states, pooled = self.joint_states(images, texts, train)
        inputs = {'rank': (pooled, train), 'itm': (pooled,)}
        return {head: getattr(self, head)(*inputs.get(head, (states,))) for head in heads}

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the size of the hidden layer or of the attention weights of a block, whichever is larger."""
        length, size = images.mask.shape[1] + texts.mask.shape[1], SIZES[self.size]
        return length * max(size.mlp_dim, size.heads * length)

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes and scores every image with every text: float32 [I, T]; at initialization applies all heads too."""
        if self.is_initializing():
            encoded = self.encode_image(images), self.encode_text(texts)
            self.read_pairs(*jax.tree.map(lambda x: x[:1], encoded), self.heads)
        return super().__call__(images, texts, train)


def _elements(vectors: chex.Array, mask: chex.Array) -> Elements:
    return Elements(jnp.where(mask[..., None], vectors, 0), mask)
