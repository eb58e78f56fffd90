"""The hits of a run on each image, kept in its row: what intervals over images need, without the scores.

A count is a digit in base 36. Images with up to eleven captions have such counts: three for each caption.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitm.report.bootstrap import Hits

BASE = 36


def to_row(hits: Hits) -> dict[str, str]:
    """Returns the fields of some hits, a digit for each image.

    Args:
      hits: The hits, of images with at most eleven captions each.
    """
    counts = {'i2t': hits.i2t / 100, 't2i': hits.t2i / 100, 'texts': hits.texts}
    return {field: ''.join(np.base_repr(int(count), BASE) for count in values) for field, values in counts.items()}


def from_row(row: Mapping[str, Any]) -> Hits | None:
    """Returns the hits that the row of a run keeps; None if it keeps none."""
    if 'hits' not in row:
        return None
    counts = {field: np.array([int(digit, BASE) for digit in digits]) for field, digits in row['hits'].items()}
    return Hits(100.0 * counts['i2t'], 100.0 * counts['t2i'], counts['texts'])
