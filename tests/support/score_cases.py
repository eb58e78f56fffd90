"""Random problems of losses, numerical gradients, and the losses that the documentation lists."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from tests.conftest import ROOT

PAGE = (ROOT / 'docs' / 'losses.md').read_text()
ROWS = re.findall(r'^\| ([^|]+) \| \[`([\w.]+)`\]\(([^)]+)\), .*\| ([^|]+) \| `([^`]+)` \|$', PAGE, flags=re.MULTILINE)
QUERIES = CANDIDATES = 7


def central_differences(function, x, step=1e-6):
    """The numerical gradient; chex.assert_numerical_grads takes a wrong stop_gradient for right."""
    steps = step * jnp.eye(x.size).reshape(-1, *x.shape)
    return jax.vmap(lambda d: (function(x + d) - function(x - d)) / (2 * step))(steps).reshape(x.shape)


def random_masks(seed, positives_per_query=1):
    rng = np.random.default_rng(seed)
    positives = np.zeros((QUERIES, CANDIDATES), bool)
    for row in positives:
        row[rng.permutation(CANDIDATES)[:positives_per_query]] = True
    return {'positives': positives, 'negatives': ~positives & (rng.random(positives.shape) < 0.8)}


def random_case(seed, positives_per_query=1):
    """Scores, positives and negatives."""
    scores = np.random.default_rng(1000 + seed).normal(scale=0.7, size=(QUERIES, CANDIDATES))
    return scores, *random_masks(seed, positives_per_query).values()
