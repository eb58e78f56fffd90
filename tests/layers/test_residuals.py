"""Residuals through many blocks, which a CPU computes once."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from jitm.layers import cnn
from jitm.layers.blocks import BlockOptions, Transformer


class Bottlenecks(nn.Module):
    """Blocks of one layer of a ResNet."""

    count: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.count):
            x = cnn._Block(2, True, 1, False, 'float32')(x, train=False)
        return x


def transformer(blocks):
    return Transformer(blocks, BlockOptions(2, 8, 0.0, pre_norm=True)), (jnp.ones((2, 3, 4)), None)


def bottlenecks(blocks):
    return Bottlenecks(blocks), (jnp.ones((1, 2, 2, 8)),)


def operands(model, inputs):
    """The largest number of arrays that a fused loop of the gradient reads."""
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    gradient = jax.jit(jax.grad(lambda variables: model.apply(variables, *inputs).sum()))
    text = gradient.lower(variables).compile().as_text()
    return max(fusion.count('%') for fusion in re.findall(r' fusion\((.*?)\)', text))


@pytest.mark.parametrize('make', [transformer, bottlenecks])
def test_a_fused_loop_reads_no_more_arrays_with_more_blocks(make):
    few, many = (operands(*make(blocks)) for blocks in (3, 6))
    assert many == few
