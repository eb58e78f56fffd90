"""The published sizes of CLIP and SigLIP; test_matchers.py has the conformance tests, tests/importers parity."""

import jax
import numpy as np
import pytest

from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.configs.settings import load

BYTE_PAIRS = 49408


def slow(*size):
    return pytest.param(*size, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('size', 'count'),
    [
        ('clip:b32', 151_277_313),
        slow('clip:rn50', 102_007_137),
        slow('clip:b16', 149_620_737),
        slow('clip:l14_336', 427_944_193),
        slow('clip:rn101', 119_688_033),
        # in millions, of vocabularies of 32,000 and 256,000
        slow('siglip:b16_224', 203.16),
        slow('siglip:b16_384', 203.45),
        slow('siglip:siglip2,b16_256', 375.23),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size, count):
    section = load(f'{size},f30k')['model']
    pixels = np.zeros((1, section['image']['image_size'], section['image']['image_size'], 3), np.uint8)
    texts = Texts(np.ones((1, 3), np.int32), np.full(1, 3, np.int32))
    model = make_model(section, BYTE_PAIRS if 'clip:' in size else 256000 if 'siglip2' in size else 32000)
    shapes = jax.eval_shape(model.init, jax.random.key(0), Images(pixels=pixels), texts)
    number = sum(leaf.size for leaf in jax.tree.leaves(shapes['params']))
    assert number == count if 'clip:' in size else round(number / 1e6, 2) == count
