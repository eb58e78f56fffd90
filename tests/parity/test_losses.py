"""Every loss of docs/losses.md against its formula on float64 of PyTorch: values, and gradients by autograd."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jitm import losses
from tests.losses.formulas import OF_QUERIES, OF_TEXTS, make_arrays, of_queries, of_texts
from tests.parity.bounds import assert_within

pytestmark = pytest.mark.needs('torch', 'transformers')

IMAGE = np.repeat(np.arange(4), 5)  # of each caption
OF_IMAGE, SAME_IMAGE = np.arange(4)[:, None] == IMAGE, IMAGE[:, None] == IMAGE
SOME = np.random.default_rng(0).random(SAME_IMAGE.shape) < 0.5
RANKINGS = {
    'images over some captions': {'positives': OF_IMAGE, 'negatives': ~OF_IMAGE & SOME[:4]},
    'captions over images': {'positives': OF_IMAGE.T},
}
SQUARE = {
    'pairs': {'positives': np.eye(20, dtype=bool), 'negatives': ~SAME_IMAGE & SOME},
    'captions of the same images': {'positives': SAME_IMAGE},
}
CASES = [(name, masks) for name in OF_QUERIES for masks in (SQUARE if name == 'OnlineQuin' else RANKINGS)]


def compare(name: str, lift: Callable, arrays: Mapping, constants: Mapping) -> None:
    """Compares the values, and the gradients of their sum with random weights with respect to all arrays."""
    formula, *variants = (OF_QUERIES | OF_TEXTS)[name]
    masks, arrays = jax.tree.map(jnp.asarray, constants), jax.tree.map(np.float32, arrays)
    for keywords in variants:
        loss = functools.partial(getattr(losses, formula.__name__), **keywords)
        values, pull_back = jax.vjp(jax.jit(lambda arrays, loss=loss: loss(**arrays, **masks)), arrays)
        weights = np.random.default_rng(2).normal(size=values.shape).astype(np.float32)
        (gradients,) = pull_back(weights)

        tensors = {key: torch.tensor(x, dtype=torch.float64, requires_grad=True) for key, x in arrays.items()}
        expected = lift(functools.partial(formula, **keywords), **tensors, **constants)
        expected = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in expected])
        slopes = torch.autograd.grad(expected, tensors.values(), torch.tensor(weights), materialize_grads=True)
        assert_within(name, values, expected)
        for key, slope in zip(tensors, slopes, strict=True):
            assert_within(name, gradients[key], slope)


@pytest.mark.parametrize(('name', 'masks'), CASES)
def test_losses_of_queries(name, masks):
    masks = (RANKINGS | SQUARE)[masks]
    compare(name, of_queries, make_arrays(name, masks['positives'].shape, np.random.default_rng(1)), masks)


@pytest.mark.parametrize('name', OF_TEXTS)
def test_losses_of_texts(name):
    rng, words = np.random.default_rng(0), 2 if name == 'WoD' else 7
    logits = rng.normal(0, 12, (4, 6, words))  # some probabilities are below 1e-10
    constants = {'labels': rng.integers(words, size=(4, 6)), 'mask': rng.random((4, 6)) < 0.7}
    compare(name, of_texts, {'logits': logits}, constants)
