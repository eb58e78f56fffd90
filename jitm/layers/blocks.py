"""Blocks of transformers (Vaswani et al., 2017), post-norm or pre-norm, and stacks of them."""

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import einops
import jax
import jax.numpy as jnp
from chex import Array, ArrayDType
from flax import linen as nn

from jitm.devices import policy
from jitm.devices.buffers import computed_once
from jitm.devices.recompute import recompute
from jitm.layers.lengths import Packing, make_packing, pack, unpack
from jitm.types import Texts

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


def layer_norm(dtype: ArrayDType | None = None, name: str | None = None, epsilon: float = EPSILON) -> nn.LayerNorm:
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
    dtype: ArrayDType | None = None
    kernel_init: nn.initializers.Initializer | KernelInits = nn.initializers.normal(0.02)
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
        tokens: Array,
        mask: Array | None,
        train: bool = False,
        bias: Array | None = None,
        context: Array | None = None,
        packing: Packing | None = None,
    ) -> Array:
        """Applies the block to each sequence of [N, L, H].

        Args:
          tokens: The sequences, or [P, H] if they are packed.
          mask: bool [N, L], the tokens that are attended to; or bool [1, L, L], one such mask for each token; None
            for all.
          train: Applies dropout, from the stream 'dropout'.
          bias: float [heads, L, L], added to the scaled scores of each query with each key; None for none.
          context: What else the tokens attend to, [N, K, C]; None for nothing.
          packing: Where sequences without a context are packed; None if they are not.
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

        def mlp(x):
            wide = nn.Dense(options.mlp_dim, dtype=options.dtype, kernel_init=init.mlp_in, name='mlp_in')(x)
            wide = ACTIVATIONS[options.activation](wide)
            return nn.Dense(x.shape[-1], dtype=options.dtype, kernel_init=init.mlp_out, name='mlp_out')(wide)

        def residual(x, layer, norm):
            if not options.pre_norm:
                return norm(x + drop(layer(x)))
            x = computed_once(x)
            return x + drop(layer(norm(x)))

        norm = functools.partial(layer_norm, options.dtype, epsilon=options.epsilon)
        among = functools.partial(nn.dot_product_attention, bias=bias)
        attend = attention(name='attention', attention_fn=_on_packed(among, packing) if packing else among)
        tokens = residual(tokens, lambda x: attend(x, mask=mask), norm('attention_norm'))
        if context is not None:
            attend_context = attention(name='cross_attention')
            tokens = residual(tokens, lambda x: attend_context(x, context), norm('cross_norm'))
        return residual(tokens, mlp, norm('mlp_norm'))


def _on_packed(attend: Callable, packing: Packing) -> Callable:
    """Returns an attention function of packed queries, keys and values [P, heads, D]."""

    @functools.wraps(attend)  # Flax passes the options that are in the signature
    def packed(*inputs, **options):
        unpacked = (unpack(packing, x) for x in inputs)
        return pack(packing, attend(*unpacked, **options))

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
        tokens: Array,
        mask: Array | None,
        train: bool = False,
        bias: Array | None = None,
        context: Array | None = None,
        texts: Texts | None = None,
    ) -> Array:
        """Maps tokens [N, L, H] with a mask, a bias and a context, see `TransformerBlock`, to [N, L, H].

        The padding of texts that have a profile is left out: zero in the result.
        """
        packing = make_packing(texts) if texts else None
        if packing is None:
            return self._apply(tokens, mask, train, bias, context)
        packed = self._apply(pack(packing, tokens), mask, train, bias, context, packing)
        return unpack(packing, packed)

    def _apply(self, tokens: Array, mask: Array | None, train: bool, *arguments: Any) -> Array:
        names = [f'block_{n}' for n in range(self.layers)]
        if self.is_initializing() or policy.unroll():
            for name in names:
                tokens = TransformerBlock(self.options, name=name)(tokens, mask, train, *arguments)
            return tokens
        # 'rbg' is the generator of the device.
        layers = jax.tree.map(lambda *x: jnp.stack(x), *(self.variables['params'][name] for name in names))
        drops = train and self.options.dropout > 0
        bits = jax.random.bits(self.make_rng('dropout'), (self.layers, 4)) if drops else None

        def apply(tokens, layer):
            params, bits = layer
            rngs = {'dropout': jax.random.wrap_key_data(bits, impl='rbg')} if drops else {}
            block = TransformerBlock(self.options, parent=None)
            return block.apply({'params': params}, tokens, mask, train, *arguments, rngs=rngs), None

        first = jax.tree.map(lambda x: x[0], (layers, bits))
        return jax.lax.scan(recompute(apply, self.layers, tokens, first), tokens, (layers, bits))[0]
