"""PyTorch's equations of a GRU in float64."""

import jax
import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def affine(p, x):
    return x @ p['kernel'] + p.get('bias', 0)


def torch_gru(params, x, length, backward):
    """PyTorch's equations in float64, one text: x [L, D] -> states [L, H]."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    state = np.zeros(p['hidden_new']['bias'].shape)
    states = np.zeros((len(x), len(state)))
    for t in range(length)[::-1] if backward else range(length):
        r = sigmoid(affine(p['input_reset'], x[t]) + affine(p['hidden_reset'], state))
        z = sigmoid(affine(p['input_update'], x[t]) + affine(p['hidden_update'], state))
        n = np.tanh(affine(p['input_new'], x[t]) + r * affine(p['hidden_new'], state))
        state = (1 - z) * n + z * state
        states[t] = state
    return states
