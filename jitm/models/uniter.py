"""One transformer over the words of a text and the regions of an image (UNITER; Chen et al., 2020b)."""

from types import MappingProxyType

import jax
import jax.numpy as jnp
from chex import Array, ArrayDType, PRNGKey
from flax import linen as nn

from jitm.errors import check_choice
from jitm.layers.blocks import layer_norm
from jitm.layers.transformer import BERTSize, size_named
from jitm.models.joint import JointBERT, masked_elements
from jitm.types import DTYPES, Elements, Images, Rate, TextFormat, Texts

HEADS = ('itm', 'mlm', 'discriminate', 'correct')
# Each of these heads is initialized as a copy of another one: rank as the row of class 1, the others as they are. This
# applies to random parameters, and to runs and published weights without the head.
HEAD_SOURCES = MappingProxyType({'rank': 'itm', 'discriminate': 'itm', 'correct': 'mlm'})


class RegionEmbeddings(nn.Module):
    """drop(LN(LN(W_f f) + LN(W_l l) + type)) of features f at locations l (section 3.1).

    Attributes:
      size: The sizes of the BERT.
      dropout: The rate of dropout.
      dtype: The type of the computation.
    """

    size: BERTSize
    dropout: Rate
    dtype: ArrayDType

    @nn.compact
    def __call__(self, images: Images, token_type: Array, train: bool = False) -> Array:
        """Embeds the regions of I images, with the type embedding [H]: [I, R, H]."""
        total = token_type
        for name, x in (('features', images.regions), ('locations', images.locations)):
            dense = nn.Dense(self.size.hidden, dtype=self.dtype, kernel_init=self.size.kernel_init, name=name)
            total += layer_norm(name=f'{name}_norm')(dense(x.astype(jnp.float32)))
        embedded = layer_norm(self.dtype, 'norm')(total)
        return nn.Dropout(self.dropout, deterministic=not train)(embedded)


class TokenHead(nn.Module):
    """LN(gelu(W h)) E^T + b, logits of the word at each position; E are word embeddings (Devlin et al., 2019, 3.1).

    Attributes:
      kernel_init: The initializer of W.
    """

    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, states: Array, words: Array) -> Array:
        """Maps states [..., H] and word embeddings [V, H] to logits [..., V]."""
        dense = nn.Dense(states.shape[-1], kernel_init=self.kernel_init, name='dense')
        hidden = layer_norm(name='norm')(nn.gelu(dense(states), approximate=False))
        return hidden @ words.T + self.param('bias', nn.initializers.zeros, (len(words),))


def _last_columns(size: BERTSize, key: PRNGKey, columns: int) -> nn.initializers.Initializer:
    """Returns an initializer that samples this number of columns from a fixed key and returns the last of them."""

    # In Flax every parameter has its own key. Heads that must be equal at initialization need a common key instead, and
    # a head with one output (rank) must equal the last output of a head with two (itm): hence the last columns.
    def init(_, shape, dtype=jnp.float32):
        return size.kernel_init(key, (shape[0], columns), dtype)[:, -shape[1] :]

    return init


class UNITER(JointBERT):
    """Embeds words and regions, reads each pair with BERT's blocks and scores the first state.

    The score is a logit in evaluation, which gives the same ranks, and its sigmoid in training, as in the released
    code. Pairs with the same image or text share the dropout of its embedding, and no other dropout. Parts that only
    pre-training needs (the embedding of masked regions and their heads) are left out.

    Attributes:
      vocab_size, size, dropout, dtype: See `JointBERT`.
      heads: The heads of `HEADS` that it has besides `rank`, for token terms.
    """

    heads: tuple[str, ...]

    text_format = TextFormat(None, BERTSize.max_positions)
    reads = ('regions', 'locations')
    head_sources = HEAD_SOURCES

    def setup(self):
        """Checks the options and creates the layers."""
        super().setup()
        for head in self.heads:
            check_choice(head, HEADS, 'heads')
        size = size_named(self.size)
        self.regions = RegionEmbeddings(size, self.dropout, DTYPES[self.dtype])
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
        self.check_images(images)
        token_type = self.bert.embeddings.token_types(jnp.ones((), jnp.int32))
        return masked_elements(self.regions(images, token_type, train), images.mask)

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Embeds [T, L] word pieces as [T, L, H]."""
        return masked_elements(self.bert.embeddings(texts.ids, train), texts.mask)

    def apply_head(self, head: str, states: Array, pooled: Array, train: bool) -> Array:
        """See `JointBERT`; `discriminate` and `correct` are heads of TAGS-DC (Fan et al., 2022)."""
        if head == 'rank':
            logits = self.rank_head(pooled)[:, 0]
            return self.training_scores(logits) if train else logits
        layer = getattr(self, f'{head}_head')
        if isinstance(layer, TokenHead):
            return layer(states, self.bert.embeddings.words.embedding)
        return layer(pooled if head == 'itm' else states)

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> Array:
        """Encodes and scores every image with every text: float32 [I, T]; at initialization applies all heads too."""
        if self.is_initializing():
            encoded = self.encode_image(images), self.encode_text(texts)
            self.read_pairs(*jax.tree.map(lambda x: x[:1], encoded), self.heads)
        return super().__call__(images, texts, train)
