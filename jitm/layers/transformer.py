"""Transformer blocks, and BERT's encoder (Devlin et al., 2019): learned positions, post-norm blocks, exact GELU.

Its variants differ in sizes only: RoBERTa (Liu et al., 2019b), XLM-R (Conneau et al., 2020), DistilBERT (Sanh et al.,
2019), MiniLM (Wang et al., 2020), and MPNet (Song et al., 2020), which adds a bias of relative positions.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.devices import policy
from jitm.devices.recompute import recompute
from jitm.errors import ArgumentError, UserError
from jitm.layers import lengths
from jitm.layers.positions import RelativePositions
from jitm.types import Count, Index, Positive, Profile, Texts

EPSILON = 1e-12  # BERT's layer normalizations
ACTIVATIONS = MappingProxyType(
    {
        'gelu': functools.partial(nn.gelu, approximate=False),
        'quick_gelu': lambda x: x * nn.sigmoid(1.702 * x),  # OpenAI's CLIP
        'gelu_tanh': functools.partial(nn.gelu, approximate=True),
        'relu': nn.relu,
        'silu': nn.silu,
    }
)


@dataclasses.dataclass(frozen=True)
class BERTSize:
    """The sizes of a BERT, and what distinguishes its variants.

    Attributes:
      hidden: The size H of the hidden states.
      layers: The number of blocks.
      heads: The number of attention heads, each with H / heads dimensions.
      mlp_dim: The hidden size of the two-layer network in each block.
      max_positions: The number of embeddings of positions.
      token_types: The number of segment embeddings, 0 for none.
      deviation: The standard deviation of the initial weights.
      first_position: The position of the first token; 2 in RoBERTa, XLM-R and MPNet.
      activation: The activation of the two-layer networks, a key of `ACTIVATIONS`.
      epsilon: The epsilon of the normalizations.
      relative_positions: Whether a bias of the distance of two tokens is added to their attention, see
        `RelativePositions`.
    """

    hidden: Count
    layers: Count
    heads: Count
    mlp_dim: Count
    max_positions: Count = 512
    token_types: Index = 2
    deviation: Positive = 0.02
    first_position: Index = 0
    activation: Literal[*ACTIVATIONS] = 'gelu'
    epsilon: Positive = EPSILON
    relative_positions: bool = False

    @property
    def max_length(self) -> int:
        """The maximum length of a text, in tokens."""
        return self.max_positions - self.first_position

    @property
    def kernel_init(self) -> nn.initializers.Initializer:
        """Initializer of weights and embeddings."""
        return nn.initializers.normal(self.deviation)


# With a deviation of 0.02 and so few dimensions, the output of the attention is a twentieth of its input, and the model
# takes long to use the regions.
TINY = BERTSize(hidden=128, layers=2, heads=2, mlp_dim=512, deviation=0.08)
BASE = BERTSize(hidden=768, layers=12, heads=12, mlp_dim=3072)
LARGE = BERTSize(hidden=1024, layers=24, heads=16, mlp_dim=4096)
SIZES = {'tiny': TINY, 'base': BASE, 'large': LARGE}


def size_named(name: str) -> BERTSize:
    """Returns the sizes of a BERT by their name: a key of `SIZES`, or such as 'L-6_H-384_A-12', with an MLP of 4 H.

    Raises:
      ArgumentError: If there is no such size.
    """
    numbers = re.fullmatch(r'L-([1-9]\d*)_H-([1-9]\d*)_A-([1-9]\d*)', name)
    layers, hidden, heads = map(int, numbers.groups() if numbers else (0, 0, 0))
    if name not in SIZES and (not numbers or hidden % heads):
        raise ArgumentError('size', f"is '{name}'; use one of {', '.join(SIZES)}, or such as 'L-6_H-384_A-12'")
    return SIZES.get(name) or BERTSize(hidden, layers, heads, 4 * hidden)


def layer_norm(dtype: chex.ArrayDType | None = None, name: str | None = None, epsilon: float = EPSILON) -> nn.LayerNorm:
    """Returns a layer normalization, by default with BERT's epsilon."""
    # The fast variance, E[x^2] - E[x]^2, is less precise than this epsilon.
    return nn.LayerNorm(epsilon=epsilon, use_fast_variance=False, dtype=dtype, name=name)


class KernelInits(NamedTuple):
    """Initializers of the kernels of a block.

    Attributes:
      attention: The initializer of queries, keys and values.
      attention_out: The initializer of W_o.
      mlp_in: The initializer of W_1.
      mlp_out: The initializer of W_2.
    """

    attention: nn.initializers.Initializer
    attention_out: nn.initializers.Initializer
    mlp_in: nn.initializers.Initializer
    mlp_out: nn.initializers.Initializer


class BlockOptions(NamedTuple):
    """The sizes and the variant of a block: BERT's by default.

    Attributes:
      heads: The number of attention heads.
      mlp_dim: The number of rows of W_1.
      dropout: The rate of dropout, also for the attention weights.
      dtype: The type of the computation; parameters, softmax and its product with the values, and the statistics of LN
        are float32.
      kernel_init: The initializer of all W, or of each of them.
      pre_norm: Normalizes the inputs of attention and MLP instead of the sums after them.
      activation: A key of `ACTIVATIONS`.
      epsilon: The epsilon of the normalizations.
    """

    heads: int
    mlp_dim: int
    dropout: float
    dtype: chex.ArrayDType | None = None
    kernel_init: nn.initializers.Initializer | KernelInits = BASE.kernel_init
    pre_norm: bool = False
    activation: str = 'gelu'
    epsilon: float = EPSILON


class TransformerBlock(nn.Module):
    """h = LN(x + drop(W_o attention(x))), y = LN(h + drop(W_2 gelu(W_1 h))) (Vaswani et al., 2017, 3.1 to 3.3).

    With `pre_norm`, h = x + drop(W_o attention(LN(x))) and y = h + drop(W_2 gelu(W_1 LN(h))). With a context, h is the
    result of two such sums: the second one attends to the context.
    """

    options: BlockOptions

    @nn.compact
    def __call__(
        self,
        tokens: chex.Array,
        mask: chex.Array | None,
        train: bool = False,
        bias: chex.Array | None = None,
        context: chex.Array | None = None,
        profile: Profile | None = None,
    ) -> chex.Array:
        """Applies the block to each sequence of [N, L, H].

        Args:
          tokens: The sequences; with a profile packed as [P, H], see `lengths.pack`.
          mask: bool [N, L], the tokens that are attended to; or bool [1, L, L], one such mask for each token; None
            for all.
          train: Applies dropout, from the stream 'dropout'.
          bias: float [heads, L, L], added to the scaled scores of each query with each key; None for none.
          context: What else the tokens attend to, [N, K, C]; None for nothing.
          profile: The profile of sequences without a context, by which they are packed; None if they are not.
        """
        options = self.options
        init = self.options.kernel_init
        init = init if isinstance(init, KernelInits) else KernelInits(*[init] * 4)
        drop = nn.Dropout(options.dropout, deterministic=not train)
        attention = functools.partial(
            nn.MultiHeadDotProductAttention,
            options.heads,
            dtype=options.dtype,
            kernel_init=init.attention,
            out_kernel_init=init.attention_out,
            dropout_rate=options.dropout,
            broadcast_dropout=False,
            deterministic=not train,
            force_fp32_for_softmax=True,
        )
        if mask is not None:
            mask = einops.rearrange(mask, 'n l -> n 1 1 l' if mask.ndim == 2 else 'n q l -> n 1 q l')

        def mlp(x: chex.Array) -> chex.Array:
            wide = nn.Dense(options.mlp_dim, dtype=options.dtype, kernel_init=init.mlp_in, name='mlp_in')(x)
            wide = ACTIVATIONS[options.activation](wide)
            return nn.Dense(x.shape[-1], dtype=options.dtype, kernel_init=init.mlp_out, name='mlp_out')(wide)

        def residual(x: chex.Array, layer: Callable, norm: nn.LayerNorm) -> chex.Array:
            return x + drop(layer(norm(x))) if options.pre_norm else norm(x + drop(layer(x)))

        norm = functools.partial(layer_norm, options.dtype, epsilon=options.epsilon)
        among = functools.partial(nn.dot_product_attention, bias=bias)
        attend = attention(name='attention', attention_fn=_on_packed(among, profile) if profile else among)
        tokens = residual(tokens, lambda x: attend(x, mask=mask), norm('attention_norm'))
        if context is not None:
            attend_context = attention(name='cross_attention')
            tokens = residual(tokens, lambda x: attend_context(x, context), norm('cross_norm'))
        return residual(tokens, mlp, norm('mlp_norm'))


def _on_packed(attend: Callable, profile: Profile) -> Callable:
    """Returns an attention function of packed queries, keys and values [P, heads, D]."""

    @functools.wraps(attend)  # Flax passes the options that are in the signature
    def packed(*inputs: chex.Array, **options: Any) -> chex.Array:
        unpacked = (lengths.unpack(profile, x) for x in inputs)
        return lengths.pack(profile, attend(*unpacked, **options))

    return packed


class Transformer(nn.Module):
    """A stack of `layers` blocks, see `TransformerBlock`; the tokens may be words, regions or both.

    On accelerators the blocks share one compiled loop, whose gradient keeps what fits into the memory, see `recompute`.
    """

    layers: int
    options: BlockOptions

    @nn.compact
    def __call__(
        self,
        tokens: chex.Array,
        mask: chex.Array | None,
        train: bool = False,
        bias: chex.Array | None = None,
        context: chex.Array | None = None,
        texts: Texts | None = None,
    ) -> chex.Array:
        """Maps tokens [N, L, H] with a mask, a bias and a context, see `TransformerBlock`, to [N, L, H].

        Tokens of texts `lengths.in_order` that are beyond their profile are left out: zero in the result.
        """
        profile = texts.profile if texts else None
        if profile is None:
            return self._apply(tokens, mask, train, bias, context)
        packed = self._apply(lengths.pack(profile, tokens), mask, train, bias, context, profile)
        return lengths.unpack(profile, packed)

    def _apply(self, tokens: chex.Array, mask: chex.Array | None, train: bool, *arguments: Any) -> chex.Array:
        names = [f'block_{n}' for n in range(self.layers)]
        if self.is_initializing() or policy.unroll():
            for name in names:
                tokens = TransformerBlock(self.options, name=name)(tokens, mask, train, *arguments)
            return tokens
        # 'rbg' is the generator of the device.
        layers = jax.tree.map(lambda *x: jnp.stack(x), *(self.variables['params'][name] for name in names))
        drops = train and self.options.dropout > 0
        bits = jax.random.bits(self.make_rng('dropout'), (self.layers, 4)) if drops else None

        def apply(tokens: chex.Array, layer: tuple[chex.ArrayTree, chex.Array | None]) -> tuple[chex.Array, None]:
            params, bits = layer
            rngs = {'dropout': jax.random.wrap_key_data(bits, impl='rbg')} if drops else {}
            block = TransformerBlock(self.options, parent=None)
            return block.apply({'params': params}, tokens, mask, train, *arguments, rngs=rngs), None

        first = jax.tree.map(lambda x: x[0], (layers, bits))
        return jax.lax.scan(recompute(apply, self.layers, tokens, first), tokens, (layers, bits))[0]


class BERTEmbeddings(nn.Module):
    """drop(LN(word + position + type)) (Devlin et al., 2019, figure 2).

    The tables are attributes: a model may tie a decoder to `words`, or add a type embedding to its regions.

    Attributes:
      vocab_size: The number of word pieces V.
      size: The sizes of the BERT.
      dropout: The rate of dropout.
      dtype: The type of the result; the sum and the parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Creates the three tables and the normalization."""
        self.words = nn.Embed(self.vocab_size, self.size.hidden, embedding_init=self.size.kernel_init)
        self.positions = nn.Embed(self.size.max_positions, self.size.hidden, embedding_init=self.size.kernel_init)
        if self.size.token_types:
            self.token_types = nn.Embed(self.size.token_types, self.size.hidden, embedding_init=self.size.kernel_init)
        self.norm = layer_norm(self.dtype, epsilon=self.size.epsilon)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, ids: chex.Array, train: bool = False, types: chex.Array | None = None) -> chex.Array:
        """Embeds word pieces int [T, L] as [T, L, H].

        Args:
          ids: The word pieces.
          train: Applies dropout, from the stream 'dropout'.
          types: int [T, L], the segment of each position; None for segment 0.

        Raises:
          UserError: If L is more than `max_length`.
        """
        length = ids.shape[1]
        maximum = self.size.max_length
        first = self.size.first_position
        if length > maximum:
            raise UserError(
                f'a batch has texts padded to {length} word pieces, BERT reads {maximum}: shorten the captions'
            )
        total = self.words(ids) + self.positions(jnp.arange(first, first + length))
        if self.size.token_types == 1:  # nn.Embed looks up no scalar in such a table
            total += self.token_types.embedding[0]
        elif self.size.token_types:
            total += self.token_types(jnp.zeros((), jnp.int32) if types is None else types)
        return self.drop(self.norm(total), deterministic=not train)


class BERT(nn.Module):
    """The encoder of BERT, or of a variant, without its pooler and heads.

    Attributes:
      vocab_size: The number of word pieces V.
      size: The sizes, such as `BASE` or `LARGE`.
      dropout: The rate of dropout of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: The type of the computation, such as `jnp.bfloat16`; parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Creates the embeddings and the blocks."""
        size = self.size
        self.embeddings = BERTEmbeddings(self.vocab_size, size, self.dropout, self.dtype)
        variant = {'activation': size.activation, 'epsilon': size.epsilon}
        options = BlockOptions(size.heads, size.mlp_dim, self.dropout, self.dtype, size.kernel_init, **variant)
        self.encoder = Transformer(size.layers, options)
        if size.relative_positions:
            self.relative = RelativePositions(size.heads, size.kernel_init)

    def __call__(self, texts: Texts, train: bool = False) -> chex.Array:
        """Returns the last hidden states [T, L, H] of T texts, zero where padded, of `dtype`."""
        bias = self.relative(texts.ids.shape[1]) if self.size.relative_positions else None

        def read(texts: Texts) -> chex.Array:
            tokens = self.embeddings(texts.ids, train)
            states = self.encoder(tokens, texts.mask, train, bias, texts=texts)
            return jnp.where(einops.rearrange(texts.mask, 't l -> t l 1'), states, 0)

        return lengths.in_order(read, texts)
