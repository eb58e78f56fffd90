import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers import cnn, convolutions
from jitm.layers.vision import RegionEncoder
from jitm.types import Images
from tests.support.networks import (
    OPTIONS,
    apply,
    draw,
    network,
    pixels,
    tiny_resnets,  # noqa: F401
    unit,
    variables,
)


def test_pixels_are_normalized():
    x = np.zeros((1, 1, 1, 3), np.uint8)
    x[..., 1] = 255
    got = convolutions.normalize_pixels(jnp.asarray(x))[0, 0, 0]
    np.testing.assert_allclose(got, [-0.485 / 0.229, (1 - 0.456) / 0.224, -0.406 / 0.225], rtol=1e-6)


@pytest.mark.parametrize('size', [(7, 7), (14, 21), (3, 3), (8, 5)])
def test_adaptive_pool_averages_windows(size):
    x = np.random.default_rng(0).normal(size=(2, *size, 3)).astype(np.float32)
    got = convolutions.adaptive_average_pool(jnp.asarray(x), 7)

    def window(cell, length):
        return slice(cell * length // 7, -(-(cell + 1) * length // 7))

    for row, column in np.ndindex(7, 7):
        want = x[:, window(row, size[0]), window(column, size[1])].mean((1, 2))
        np.testing.assert_allclose(got[:, row, column], want, atol=1e-6)


@pytest.mark.parametrize(('size', 'stride', 'padding'), [(2, 2, 0), (3, 2, 1), (3, 1, 1)])
def test_max_pool_has_the_values_and_gradient_of_flax(size, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 9, 12, 3)).astype(np.float32)
    padding = [(padding, padding)] * 2

    def both(pool):
        return jax.jit(jax.value_and_grad(lambda y: jnp.sum(jnp.sin(pool(y)))))(x)

    want = both(lambda y: nn.max_pool(y, (size, size), (stride, stride), padding))
    got = both(lambda y: convolutions.max_pool(y, size, stride, padding))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), got, want)


@pytest.mark.parametrize(('size', 'stride', 'shape'), [(3, 1, (8, 9)), (3, 2, (8, 9)), (5, 2, (7, 4))])
def test_depthwise_has_the_values_and_gradient_of_flax(size, stride, shape):
    x = np.random.default_rng(0).normal(size=(2, *shape, 3)).astype(np.float32)
    ours = convolutions.Depthwise(size, stride)
    theirs = nn.Conv(3, (size, size), (stride, stride), 'SAME', feature_group_count=3, use_bias=False)
    params = {'params': draw(ours, x)['params']}

    def both(model):
        return jax.jit(jax.value_and_grad(lambda given, y: jnp.sum(jnp.sin(model.apply(given, y))), (0, 1)))(params, x)

    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), both(ours), both(theirs))


LARGER = ((1, 5_416_680), (2, 6_092_072), (3, 8_197_096), (4, 13_006_568))


@pytest.mark.parametrize(
    ('number', 'parameters'), [(0, 4_652_008), *(pytest.param(*row, marks=pytest.mark.slow) for row in LARGER)]
)
def test_parameters_of_efficientnet_lite(number, parameters):
    """The published numbers, whose classifier has 1,281,000."""
    model = network(f'lite-{number}')
    made = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 32, 32, 3)))
    assert sum(leaf.size for leaf in jax.tree.leaves(made['params'])) == parameters - 1_281_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'cells', 'features'),
    [('squeezenet', 9, 512), ('resnet-99', 4, 2048), ('lite-0', 4, 1280)],
)
def test_global_vector_is_the_mean_of_the_cells(kind, cells, features):
    x = pixels()
    grid = apply(network(kind, pooled=False), variables(kind), x)
    assert (grid.shape, grid.dtype) == ((2, cells, features), jnp.float32)
    assert np.abs(grid).max() > 0
    pooled = apply(network(kind), variables(kind), x)
    np.testing.assert_allclose(pooled[:, 0], grid.mean(1), atol=1e-5 * grid.max())


@pytest.mark.parametrize('kind', ['squeezenet', 'resnet-99'])
def test_cells_are_ordered_by_row(kind):
    x = pixels((96, 160))
    x[:, :, 80:] = 0  # the right half is black
    y = x.copy()
    y[0, :12, :12] = 255 - y[0, :12, :12]
    model = network(kind, pooled=False)
    before, after = (apply(model, variables(kind), image) for image in (x, y))
    changed = np.abs(after - before).max(-1)
    assert changed[0].argmax() == 0
    np.testing.assert_array_equal(changed[1], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind', ['squeezenet', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('resnet-99', 'vgg19'))]
)
def test_rematerialization_changes_no_gradient(kind):
    x = pixels((32, 32))
    given = variables(kind, False)

    def gradient(remat):
        model = network(kind, pooled=False, remat=remat)

        def loss(params):
            out = model.apply(given | {'params': params}, convolutions.normalize_pixels(x))
            return jnp.sum(jnp.sin(out / jnp.linalg.norm(out)))

        return jax.jit(jax.grad(loss))(given['params'])

    first = gradient(False)
    second = gradient(True)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(first))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize('kind', ['squeezenet', 'resnet-99'])
def test_half_precision_is_close(kind):
    x = pixels()
    given = variables(kind)
    whole, half = (apply(network(kind, dtype=dtype), given, x) for dtype in ('float32', 'bfloat16'))
    assert half.dtype == jnp.float32
    assert 1e-6 < np.abs(unit(half) - unit(whole)).max() < 0.02


@pytest.mark.slow
def test_batch_normalization_is_frozen_or_not():
    x = pixels()
    given = variables('resnet-10')
    frozen, changed = apply(network('resnet-10'), given, x, train=True)
    np.testing.assert_array_equal(frozen, apply(network('resnet-10'), given, x))
    jax.tree.map(np.testing.assert_array_equal, changed.get('batch_stats', given['batch_stats']), given['batch_stats'])
    trained, changed = apply(network('resnet-10', train_norm=True), given, x, train=True)
    assert np.abs(trained - frozen).max() > 0
    assert all(
        np.abs(new - old).max() > 0
        for new, old in zip(jax.tree.leaves(changed), jax.tree.leaves(given['batch_stats']), strict=True)
    )


def encoder(pooled, normalize):
    regions = RegionEncoder(8, mlp='none', norm_padding=False)
    return cnn.PixelEncoder(network('squeezenet', pooled=pooled), normalize, regions)


class Flat(cnn.ConvolutionalNetwork):
    mean = cnn.EfficientNetLite.mean
    deviation = (0.5, 0.5, 0.5)

    def __call__(self, x, train=False):
        return x.reshape(len(x), -1, 3)


def test_pixels_have_the_moments_of_the_network():
    pixel = np.full((1, 32, 32, 3), 255, np.uint8)
    got = cnn.PixelEncoder(Flat(**OPTIONS), False, None).apply({}, Images(pixels=pixel), method='features')
    np.testing.assert_allclose(got, 2 - 127 / 127.5, rtol=1e-6)
    np.testing.assert_allclose(cnn.EfficientNetLite.deviation, [128 / 255] * 3)


@pytest.mark.parametrize(('pooled', 'regions'), [(True, 1), (False, 9)])
def test_pixel_encoder_feeds_the_region_encoder(pooled, regions):
    images = Images(pixels=pixels())
    model = encoder(pooled, True)
    given = draw(model, images)
    got, mask = jax.jit(model.apply)(given, images)
    assert got.shape == (2, regions, 8)
    assert mask.shape == (2, regions)
    assert mask.all()
    features = jax.jit(functools.partial(model.apply, method='features'))(given, images)
    layer = given['params']['regions']['image_fc']
    np.testing.assert_allclose(got, unit(features) @ layer['kernel'] + layer['bias'], atol=1e-5)
    raw, _ = jax.jit(encoder(pooled, False).apply)(given, images)
    np.testing.assert_allclose(raw, features @ layer['kernel'] + layer['bias'], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda: network('squeezenet', dtype='float16'), "dtype is 'float16'; use one of"),
        (lambda: network('resnet-34'), 'depth is 34; use one of 18, 50, 101, 152'),
        (lambda: network('lite-5'), 'number is 5; use one of 0, 1, 2, 3, 4'),
    ],
)
def test_unknown_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(change().init, jax.random.key(0), np.zeros((1, 32, 32, 3)))


def test_tiny_images_are_refused():
    with pytest.raises(UserError, match='images have 31 x 40 pixels; give at least 32 x 32'):
        jax.eval_shape(encoder(True, True).init, jax.random.key(0), Images(pixels=pixels((31, 40))))
