"""The differences that docs/notes/parity.md states, and comparisons with them."""

import re
from collections.abc import Iterable
from pathlib import Path

import jax
import numpy as np

PAGE = Path(__file__).parents[2] / 'docs' / 'notes' / 'parity.md'
ROW = re.compile(r'^\| (?P<names>[^|]+) \|(?:.*\|)? (?P<bound>\d[\de.-]*) \|$', re.MULTILINE)
BOUNDS = {name: float(row['bound']) for row in ROW.finditer(PAGE.read_text()) for name in row['names'].split('; ')}


def difference(ours, theirs) -> float:
    """Returns the largest difference of two arrays, or lists of arrays, over the largest number of the second or 1."""
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(_arrays(ours), _arrays(theirs), strict=True)]
    assert all(a.shape == b.shape for a, b in pairs), [(a.shape, b.shape) for a, b in pairs]
    return max(np.abs(a - b).max(initial=0) for a, b in pairs) / max(1, *(np.abs(b).max(initial=0) for _, b in pairs))


def assert_within(name: str, ours, theirs) -> None:
    """Raises AssertionError if the arrays differ by more than twice the bound of `name` in docs/notes/parity.md."""
    largest = difference(ours, theirs)
    assert largest <= 2 * BOUNDS[name], f'{name}: {largest:.1e}, which is more than twice {BOUNDS[name]}'


def _arrays(values) -> Iterable[np.ndarray]:
    return (np.asarray(leaf.detach() if hasattr(leaf, 'detach') else leaf) for leaf in jax.tree.leaves(values))
