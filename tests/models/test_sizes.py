"""Models of published sizes have the published number of parameters."""

import jax
import pytest

from tests.support.sizes import shapes_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ('setting', 'vocab_size', 'count'),
    [
        ('clip:b32,f30k', 49408, 151_277_313),
        ('clip:rn50,f30k', 49408, 102_007_137),
        ('clip:b16,f30k', 49408, 149_620_737),
        ('clip:l14_336,f30k', 49408, 427_944_193),
        ('clip:rn101,f30k', 49408, 119_688_033),
        ('siglip:b16_224,f30k', 32000, 203_155_970),
        ('siglip:b16_384,f30k', 32000, 203_447_810),
        ('siglip:siglip2,b16_256,f30k', 256000, 375_234_050),
        ('blip:base,f30k', 30524, 223_744_258 + 1),  # with the temperature, which the published folders lack
        ('blip:large,f30k', 30524, 446_128_642 + 1),
        # Less the [2, 2048] embeddings of masked regions; with heads of matching, of words, and of ranking.
        ('tags:tags_dc,f30k', 28996, 109_898_752 - 4096 + 2 * 1_538 + 2 * 621_124 + 769),
        ('uniter:uniter,large,f30k', 28996, 335_695_872 - 4096 + 1_080_644 + 1_025),
        # BERT base with its pooler, 2,054 x 768 for regions and their normalization, and two classes.
        ('oscar:alone,base,coco', 30522, 109_482_240 + (2054 * 768 + 768) + 2 * 768 + (2 * 768 + 2)),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(setting, vocab_size, count):
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(setting, vocab_size))) == count
