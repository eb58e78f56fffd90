"""The published sizes of CLIP; test_matchers.py has the conformance tests, tests/importers/test_clip.py parity."""

import jax
import numpy as np
import pytest

from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.configs.settings import load

BYTE_PAIRS = 49408


@pytest.mark.parametrize(
    ('size', 'count'),
    [
        ('b32', 151_277_313),
        ('b16', 149_620_737),
        ('l14_336', 427_944_193),
        ('rn50', 102_007_137),
        ('rn101', 119_688_033),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size, count):
    section = load(f'clip:{size},softmax,f30k')['model']
    pixels = np.zeros((1, section['image']['image_size'], section['image']['image_size'], 3), np.uint8)
    texts = Texts(np.ones((1, 3), np.int32), np.full(1, 3, np.int32))
    model = make_model(section, BYTE_PAIRS)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Images(pixels=pixels), texts)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes['params'])) == count
