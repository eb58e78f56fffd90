"""Tiny image networks with random weights, and their comparison with those of PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.importers.cnn_weights import NAMES, load_network
from jitm.importers.tensors import export
from jitm.layers import cnn, convolutions
from tests.parity.bounds import assert_within

OPTIONS = {'pooled': True, 'dtype': 'float32', 'remat': False}
ROWS = {'vgg19': 'VGG19', 'squeezenet': 'SqueezeNet', 'resnet': 'ResNet', 'lite': 'EfficientNet-Lite'}  # of the bounds
TINY = {10: (1, 1, 1, 1), 99: (1, 1, 1, 1)}  # depth -> blocks of tiny ResNets, plain and with bottlenecks


@pytest.fixture(autouse=True)
def tiny_resnets(monkeypatch):
    monkeypatch.setattr(cnn, 'RESNETS', cnn.RESNETS | TINY)


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
    size = {key: int(number[0]), 'train_norm': False} if number else {}
    return make(**OPTIONS | size | options)


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
def apply(model, parameters, x, train=False):
    x = convolutions.normalize_pixels(x, model.mean, model.deviation)
    return model.apply(parameters, x, train, mutable=['batch_stats'] if train else False)


def unit(x):
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


@functools.cache
def shapes(kind, pooled=True):
    made = jax.eval_shape(network(kind, pooled=pooled).init, jax.random.key(0), np.zeros((1, 64, 64, 3), np.float32))
    return made['params'], made.get('batch_stats', {})


def load(path, kind, pooled=True):
    return load_network(str(path), *shapes(kind, pooled))


@functools.cache
def published():
    """Tensors of SqueezeNet 1.1 as torchvision names them."""
    return export(variables('squeezenet'), NAMES) | {'classifier.1.bias': np.zeros(1000, np.float32)}


def randomize(model):
    """Gives a network of torch random statistics, so that its features neither vanish nor explode."""
    import torch

    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        elif isinstance(module, torch.nn.Conv2d) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def theirs(model, x, ours=cnn.SqueezeNet):
    import torch

    with torch.no_grad():
        normalized = convolutions.normalize_pixels(jnp.asarray(x), ours.mean, ours.deviation).transpose(0, 3, 1, 2)
        return model(torch.tensor(np.asarray(normalized))).numpy()


def check_parity(path, kind, want, x, pooled=True):
    """Compares unit vectors with those of another implementation, [I, F] or [I, F, H, W]."""
    if want.ndim == 4:
        want = want.reshape(*want.shape[:2], -1).transpose(0, 2, 1)
    got = np.asarray(apply(network(kind, pooled=pooled), load(path, kind, pooled), x))
    assert want.std() > 0
    row = ROWS[kind.split('-')[0]]
    assert_within(row, unit(got[:, 0] if want.ndim == 2 else got), unit(want))
