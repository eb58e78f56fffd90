import numpy as np
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.training.modules import check_rates, rate_factors, select_modules
from tests.support.sizes import shapes_of

BLOCKS = [f'text/encoder/block_{n}/attention/query/kernel' for n in range(12)]
OTHERS = [
    'text/words/embedding',
    'text/norm_out/scale',
    'text/projection/kernel',
    'image/image_fc/kernel',
    'logit_scale',
]
PARAMS = traverse_util.unflatten_dict(dict.fromkeys([*BLOCKS, *OTHERS], np.ones(1)), sep='/')


def flat(tree):
    return traverse_util.flatten_dict(tree, sep='/')


@pytest.mark.parametrize(
    ('pattern', 'paths'),
    [
        ('text', [path for path in (*BLOCKS, *OTHERS) if path.startswith('text')]),
        ('image_fc', ['image/image_fc/kernel']),
        ('logit_scale', ['logit_scale']),
        ('text/words', ['text/words/embedding']),
        ('block_1', [BLOCKS[1]]),
        ('encoder/block_[0-5]', BLOCKS[:6]),
        ('text/*/block_1?', BLOCKS[10:]),
        ('text/block_1', []),
        ('lower_0%', OTHERS[:1]),
        ('lower_50%', [*BLOCKS[:6], OTHERS[0]]),
        ('lower_99%', [*BLOCKS[:11], OTHERS[0]]),
        ('lower_100%', [*BLOCKS, *OTHERS[:2]]),
        ('lower_101%', []),
        ('ext', []),
    ],
)
def test_a_pattern_selects_consecutive_names_of_a_path(pattern, paths):
    assert {path for path, chosen in flat(select_modules(PARAMS, [pattern])).items() if chosen} == {*paths}


CLIP = {'image': {'patches', 'class_embedding', 'positions', 'norm_in'}, 'text': {'words', 'positions'}}
SIGLIP = {'image': {'patches', 'positions'}, 'text': {'words', 'positions'}}
BLIP = {'image': {'patches', 'class_embedding', 'positions'}, 'text': {'words', 'positions', 'norm_in'}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('preset', 'first', 'trained'),
    [
        ('clip:b32', CLIP, {'norm_out', 'projection'}),
        pytest.param('siglip:b16_224', SIGLIP, {'norm_out', 'projection', 'pooling'}, marks=pytest.mark.slow),
        pytest.param('blip:base', BLIP, {'norm_out', 'projection'}, marks=pytest.mark.slow),
        ('vse:rvsepp', {'text/bert': {'embeddings'}}, set()),
        pytest.param('uniter', {'bert': {'embeddings'}}, set(), marks=pytest.mark.slow),
        pytest.param('oscar', {'bert': {'embeddings'}}, set(), marks=pytest.mark.slow),
    ],
)
def test_lower_layers_are_embeddings_and_blocks_of_each_tower(preset, first, trained):
    selected = {}
    for path, chosen in flat(select_modules(shapes_of(preset), ['lower_50%'])).items():
        root = next((root for root in first if path.startswith(f'{root}/')), 'outside')
        module = path.removeprefix(f'{root}/').removeprefix('encoder/').partition('/')[0]
        selected.setdefault((root, chosen), set()).add(module)
    assert not [root for root, chosen in selected if root == 'outside' and chosen]
    for root, embeddings in first.items():
        assert selected[root, True] == embeddings | {f'block_{n}' for n in range(6)}
        assert (
            {f'block_{n}' for n in range(6, 12)}
            <= selected[root, False]
            <= {f'block_{n}' for n in range(6, 12)} | trained
        )


@pytest.mark.parametrize(
    ('pattern', 'near'), [('image_fd', 'image_fc'), ('text/encoder/blok_3', 'text/encoder/block_3')]
)
def test_an_unknown_pattern_names_the_nearest(pattern, near):
    with pytest.raises(UserError, match=f"name no module of the model: '{pattern}', did you mean '{near}'"):
        check_rates(PARAMS, {pattern: 0.0})


@pytest.mark.parametrize(
    ('decay', 'first', 'last'), [(0.9, 0.2542, 0.9), (0.85, 0.1209, 0.85), (0.75, 0.0238, 0.75), (0.65, 0.0037, 0.65)]
)
def test_rates_fall_by_layer_as_in_open_clip(decay, first, last):
    rates = flat(rate_factors(PARAMS, {'text/encoder/block_3': 0.5}, decay))
    np.testing.assert_allclose(rates['text/words/embedding'], first, atol=5e-5)
    for n, path in enumerate(BLOCKS):
        np.testing.assert_allclose(rates[path], decay ** (12 - n) * (0.5 if n == 3 else 1), rtol=1e-12)
    assert rates[BLOCKS[11]] == rates['text/norm_out/scale'] == last
    assert rates['text/projection/kernel'] == rates['image/image_fc/kernel'] == rates['logit_scale'] == 1


@pytest.mark.parametrize(
    ('factors', 'decay', 'key'), [({}, 0.9, 'layer_decay'), ({'lower_50%': 0.0}, 1.0, 'factors.lower_50%')]
)
def test_keys_of_layers_need_a_transformer(factors, decay, key):
    with pytest.raises(UserError, match=f"'optimizer.{key}' is set, but the model has no transformer: leave it out"):
        check_rates({'gru': {'kernel': np.ones(1)}}, factors, decay)
