"""The hits of a run on each image, kept in its row: what intervals over images need, without the scores.

An image with n captions has at most 3 n hits, so that a digit in base 36 holds those of up to eleven captions.
"""

from collections.abc import Mapping

import numpy as np

from jitm.report.bootstrap import Hits

BASE = 36


def encode(hits: Hits) -> dict[str, str]:
    """Returns the fields of some hits, a digit for each image; raises a ValueError if a count has two."""
    counts = {'i2t': hits.i2t / 100, 't2i': hits.t2i / 100, 'texts': hits.texts}
    if max(values.max() for values in counts.values()) >= BASE:
        raise ValueError(f'an image has {hits.texts.max()} captions, too many for a digit in base {BASE}')
    return {field: ''.join(np.base_repr(int(count), BASE) for count in values) for field, values in counts.items()}


def decode(fields: Mapping[str, str]) -> Hits:
    """Returns the hits of `encode`."""
    counts = {field: np.array([int(digit, BASE) for digit in digits]) for field, digits in fields.items()}
    return Hits(100.0 * counts['i2t'], 100.0 * counts['t2i'], counts['texts'])
