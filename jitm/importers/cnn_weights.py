"""Converts published ImageNet weights to the variables of the networks in `jitm.layers.cnn`."""

import functools
import re
from pathlib import Path
from typing import Any, Literal

import chex
import numpy as np

from jitm.config.foreign import declared, neutral, read_declared, read_json
from jitm.errors import UserError
from jitm.files import hash_file
from jitm.files.packages import located
from jitm.importers.containers import FILES, Tensors, folder_of, open_checkpoint
from jitm.importers.processors import PROCESSOR, Deviation, Mean, Processor
from jitm.importers.tensors import KeyMap, convert, rename
from jitm.importers.transformers_keys import HARMLESS, Encoder
from jitm.layers import cnn

_PARTS = ('expand', 'depthwise', 'project')  # layers in a block of EfficientNet-Lite
# Patterns of the names of tensors -> torchvision's names, or those of our EfficientNet-Lite, one rule after the other.
_VGG_OF_TIMM = (
    (r'^pre_logits\.fc1\.', 'classifier.0.'),
    (r'^pre_logits\.fc2\.', 'classifier.3.'),
)
_RESNET_OF_TRANSFORMERS = (  # which counts from 0
    (r'^resnet\.', ''),
    (r'^embedder\.embedder\.', '0.'),
    *((rf'^encoder\.stages\.{n}\.layers\.', f'layer{n + 1}.') for n in range(4)),
    *((rf'{n}\.convolution\.', f'conv{n + 1}.') for n in range(3)),
    *((rf'{n}\.normalization\.', f'bn{n + 1}.') for n in range(3)),
    (r'\.layer\.(conv|bn)', r'.\1'),
    (r'\.shortcut\.convolution\.', '.downsample.0.'),
    (r'\.shortcut\.normalization\.', '.downsample.1.'),
)
_LITE_OF_ITS_PACKAGE = (  # efficientnet-lite-pytorch, which counts from 0
    (r'^_(conv_stem|conv_head|fc)\.', r'\1.'),
    *((rf'^_bn{n}\.', f'bn{n + 1}.') for n in range(2)),
    (r'^_blocks\.', 'blocks.'),
    (r'\._(\w+)_conv\.', r'.\1.'),
    *((rf'\._bn{n}\.', f'.{part}_bn.') for n, part in enumerate(_PARTS)),
)
_LITE_OF_TIMM = (  # whose first stage expands nothing
    (r'^(blocks\.0\.\d+)\.conv_pw\.', r'\1.project.'),
    (r'\.conv_pw\.', '.expand.'),
    (r'\.conv_dw\.', '.depthwise.'),
    (r'\.conv_pwl\.', '.project.'),
    *((rf'^(blocks\.0\.\d+)\.bn{n}\.', rf'\1.{part}_bn.') for n, part in enumerate(_PARTS)),
    *((rf'^(blocks\.\d+\.\d+)\.bn{n}\.', rf'\1.{part}_bn.') for n, part in enumerate(_PARTS, 1)),
)
RULES = (
    *_VGG_OF_TIMM,
    *_RESNET_OF_TRANSFORMERS,
    *_LITE_OF_ITS_PACKAGE,
    *_LITE_OF_TIMM,
)
FULLY_CONNECTED = {'classifier.0.weight', 'classifier.3.weight'}  # matrices in torchvision's VGG, convolutions in ours
NAMES = KeyMap(
    networks={'': ''},
    # Classifiers, whose last layers our networks do not have, and counters.
    unread=r'(fc|head\.fc|classifier(\.\d+)?)\.(weight|bias)|.*\.num_batches_tracked',
)


CONFIG = 'config.json'
NETWORKS = {  # timm's name -> ours; timm's other networks compute something else from tensors of the same names
    'vgg19': cnn.VGG19,
    **{f'resnet{depth}': cnn.ResNet for depth in cnn.RESNETS},
    **{f'tf_efficientnet_lite{number}': cnn.EfficientNetLite for number in cnn.LITES},
}
CLOSE = 0.002  # half a level of 255; timm rounds the moments of EfficientNet-Lite
REMEDY = 'give the weights of another network'


@declared
class _TimmPixels:
    remedy = REMEDY
    # Where the weights are from, the classifier, and the photos; the config of the run states how these are resized.
    harmless = """
        architecture classifier crop_mode crop_pct custom_load description drop_path_rate drop_rate file first_conv
        fixed_input_size hf_hub_filename hf_hub_id input_size interpolation label_descriptions label_names label_offset
        labels license min_input_size notes num_classes num_features origin_url paper_ids paper_name pool_size source
        tag test_crop_pct test_input_size test_pool_size url
        """

    mean: Mean | None = None
    std: Deviation | None = None


@declared
class _TimmArguments(neutral(in_chans=3, global_pool='avg')):
    remedy = REMEDY
    harmless = _TimmPixels.harmless


@declared
class _Timm(_TimmPixels, neutral(global_pool='avg')):
    architecture: Literal[*NETWORKS]
    model_args: _TimmArguments | None = None
    pretrained_cfg: _TimmPixels | None = None  # files of old versions have its keys themselves


@declared
class _ResNet(
    Encoder,
    neutral(
        num_channels=3,
        embedding_size=64,
        hidden_act='relu',
        downsample_in_first_stage=False,
        downsample_in_bottleneck=False,
    ),
):
    remedy = REMEDY
    harmless = f'{HARMLESS} depths hidden_sizes layer_type out_features out_indices stage_names'

    model_type: Literal['resnet']


@declared
class _Photos(Processor):
    remedy = REMEDY
    harmless = f'{Processor.harmless} crop_pct do_center_crop size'

    image_processor_type: Any = None
    feature_extractor_type: Any = None
    do_resize: Any = None
    resample: Any = None


def load_network(path: str, params: chex.ArrayTree, batch_stats: chex.ArrayTree) -> dict[str, chex.ArrayTree]:
    """Reads published weights of a network in `jitm.layers.cnn`.

    Args:
      path: The path of a file of torchvision (`.pth`), timm or Hugging Face (`.safetensors`), a folder with one, or an
        `.npz` file with the names of torchvision; or a key of `packages.PACKAGES`. The classifier is skipped.
      params: The parameters of a network in `jitm.layers.cnn`; only shapes are read.
      batch_stats: Its batch statistics, likewise; empty for a network without batch normalization.

    Returns:
      'params' and 'batch_stats' -> the same trees with float32 numpy arrays.

    Raises:
      UserError: If the file cannot be read, lacks tensors of the network or has others, or they have other shapes; or
        if the `config.json` beside it is of another network.
    """
    path = located(path)
    _check_digest(path)
    folder = folder_of(path)
    if (folder / CONFIG).is_file() and (Path(path) == folder or Path(path).name in FILES):
        _check_config(folder)
    tensors = prepare(open_checkpoint(path, 'the network', NAMES.pattern(), functools.partial(rename, RULES)).tensors)
    trees = {'params': params, 'batch_stats': batch_stats}
    return convert(path, tensors, trees, NAMES, 'the network that the config names')


def _check_config(folder: Path) -> None:
    """Raises a UserError unless jitm has the network of a folder of timm or transformers, with its normalization."""
    file = folder / CONFIG
    content = read_json(file)
    if 'architecture' in content:
        config = read_declared(_Timm, file, content)
        pixels = config.pretrained_cfg or config
        network = NETWORKS[config.architecture]
        moments = pixels.mean, pixels.std
    else:
        read_declared(_ResNet, file, content)
        network = cnn.ResNet
        file = folder / PROCESSOR
        pixels = read_declared(_Photos, file)
        moments = pixels.image_mean, pixels.image_std
    for values, expected in zip(moments, (network.mean, network.deviation), strict=True):
        if values and not np.allclose(values, expected, atol=CLOSE):
            problem = f'normalizes photos by {tuple(values)}, but the network reads {expected}'
            raise UserError(f'{file} {problem}: {REMEDY}')


def _check_digest(path: str) -> None:
    """Raises a UserError if a file's name ends in the first digits of its SHA-256, as torchvision's, and it differs."""
    match = re.search(r'-([0-9a-f]{8})\.pth$', path)
    if match and Path(path).is_file():
        digest = hash_file(path)
        if not digest.startswith(match[1]):
            raise UserError(f'{path} is damaged, its SHA-256 starts with {digest[:8]}: download it again')


def prepare(tensors: Tensors, prefix: str = '') -> Tensors:
    """Returns the tensors of a network, below a prefix, with current numbers.

    Before 2017 the classifier of VGG started with dropout. timm numbers the blocks of each stage.
    """
    below = re.escape(prefix)
    places = {(int(n), int(m)) for n, m in re.findall(rf'^{below}blocks\.(\d+)\.(\d+)\.', '\n'.join(tensors), re.M)}
    blocks = {f'{n}.{m}': str(number) for number, (n, m) in enumerate(sorted(places))}
    old = {'0': '-', '1': '0', '4': '3'} if f'{prefix}classifier.4.weight' in tensors else {}
    rules = (
        (rf'(?<=^{below}blocks\.)\d+\.\d+', lambda match: blocks[match[0]]),
        (rf'(?<=^{below}classifier\.)\d', lambda match: old.get(match[0], match[0])),
    )
    return {rename(rules, name): read for name, read in tensors.items()}
