"""How many words the captions of a benchmark have."""

from pathlib import Path

import numpy as np


def made_up_lengths(texts: int) -> np.ndarray:
    """Words of captions as long as Flickr's: int [T]."""
    return np.clip(np.random.default_rng(0).gamma(8.0, 1.55, texts), 3, 76).astype(int)


def caption_lengths(captions: Path | None, texts: int) -> np.ndarray:
    """Words of the first captions of a text file, or made up, and `<start>` and `<end>`: int [T]."""
    if captions is None:
        return made_up_lengths(texts) + 2
    lines = captions.read_text(encoding='utf-8').splitlines()
    return np.array([len(line.split()) + 2 for line in lines[:texts]])
