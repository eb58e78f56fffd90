"""Tiny image networks with random weights."""

import functools

import jax
import numpy as np

from jitm.layers import cnn, convolutions

OPTIONS = {'pooled': True, 'dtype': 'float32', 'remat': False}
TINY = {10: (1, 1, 1, 1), 99: (1, 1, 1, 1)}  # depth -> blocks of tiny ResNets, plain and with bottlenecks


def pixels(size=(64, 64), images=2, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (images, *size, 3), dtype=np.uint8)


def network(kind, **options):
    name, *number = kind.split('-')
    make, key = {
        'vgg19': (cnn.VGG19, ''),
        'squeezenet': (cnn.SqueezeNet, ''),
        'resnet': (cnn.ResNet, 'depth'),
        'lite': (cnn.EfficientNetLite, 'number'),
    }[name]
    own = {key: int(number[0]), 'train_norm': False} if number else {}
    return make(**OPTIONS | own | options)


def draw(model, inputs):
    """Random parameters, and for batch normalization random statistics; unlike an initialization without compiling."""
    rng = np.random.default_rng(0)
    ranges = {'mean': (-1, 1), 'variance': (0.5, 1), 'scale': (0.5, 1.5), 'bias': (-0.1, 0.1)}

    def sample(path, leaf):
        if path[-1].key in ranges:
            return np.float32(rng.uniform(*ranges[path[-1].key], leaf.shape))
        return rng.standard_normal(leaf.shape, np.float32) * np.float32(2 / np.prod(leaf.shape[:-1])) ** 0.5

    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)
    return {'batch_stats': {}} | jax.tree_util.tree_map_with_path(sample, shapes)


@functools.cache
def variables(kind, pooled=True):
    return draw(network(kind, pooled=pooled), np.zeros((1, 64, 64, 3), np.float32))


@functools.partial(jax.jit, static_argnums=0, static_argnames='train')
def apply(model, given, x, train=False):
    x = convolutions.normalize_pixels(x, model.mean, model.deviation)
    return model.apply(given, x, train, mutable=['batch_stats'] if train else False)


def unit(x):
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))
