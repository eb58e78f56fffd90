"""The lengths of the captions of a benchmark."""

from pathlib import Path

import numpy as np


def random_lengths(texts: int) -> np.ndarray:
    """Samples numbers of words, distributed as in Flickr's captions: int [T]."""
    return np.clip(np.random.default_rng(0).gamma(8.0, 1.55, texts), 3, 76).astype(int)


def caption_lengths(captions: Path | None, texts: int) -> np.ndarray:
    """Returns the tokens of the first captions of a text file, or of random captions, with special tokens: int [T]."""
    if captions is None:
        return random_lengths(texts) + 2
    lines = captions.read_text(encoding='utf-8').splitlines()
    return np.array([len(line.split()) + 2 for line in lines[:texts]])
