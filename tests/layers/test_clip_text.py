"""The positions of a longer context; tests/importers and tests/models test the encoder."""

import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers.clip_text import stretch_positions


def by_hand(positions, factor, kept):
    """One position after the other; the slope after the last one is that before it."""
    rows = list(positions[:kept])
    for i in range(kept, len(positions)):
        first, second = (positions[i], positions[i + 1]) if i + 1 < len(positions) else positions[[i - 1, i]]
        rows += [positions[i] + k / factor * (second - first) for k in range(factor)]
    return np.array(rows)


@pytest.mark.parametrize(('length', 'factor', 'kept'), [(77, 4, 20), (12, 3, 0), (9, 2, 7), (8, 1, 5)])
def test_positions_are_interpolated_and_extrapolated(length, factor, kept):
    positions = np.random.default_rng(0).normal(size=(length, 3)).astype(np.float32)
    got = stretch_positions(positions, factor, kept)
    assert got.shape == (factor * length - (factor - 1) * kept, 3)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, by_hand(positions.astype(np.float64), factor, kept), atol=1e-6)


def test_positions_of_long_clip():
    got = np.asarray(stretch_positions(np.arange(77.0)[:, None], 4))[:, 0]
    assert got[19:25].tolist() == [19, 20, 20.25, 20.5, 20.75, 21]
    assert got[243:].tolist() == [75.75, 76, 76.25, 76.5, 76.75]
    with pytest.raises(UserError, match='has 21 positions: stretch one with at least 22'):
        stretch_positions(np.zeros((21, 4)), 4)
