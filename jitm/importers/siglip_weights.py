"""Converts published SigLIP and SigLIP 2 models of fixed resolution, of Hugging Face, to configs and variables."""

from pathlib import Path
from typing import Any

from jitm.config.foreign import read_json
from jitm.data.images.transforms import INTERPOLATIONS
from jitm.data.text.pieces import Subwords
from jitm.errors import UserError
from jitm.importers import clip_config, clip_weights
from jitm.importers.containers import open_checkpoint
from jitm.importers.released import ReleasedModel, with_towers
from jitm.importers.tensors import KeyMap
from jitm.layers.siglip import DEVIATION, EPSILON, MEAN

TEMPERATURE, BIAS = 0.1, -10.0  # initial values; a converted model has the learned ones
TOKENIZERS = ('spiece.model', 'tokenizer.json')
ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu': 'gelu', 'quick_gelu': 'quick_gelu'}  # Hugging Face's -> ours
BICUBIC = INTERPOLATIONS['bicubic']  # if a file states none

# Keys of Hugging Face's config -> defaults, which published files leave out.
_WIDTHS = {'hidden_size': 768, 'intermediate_size': 3072, 'num_hidden_layers': 12, 'num_attention_heads': 12}
_SIZES = _WIDTHS | {'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': EPSILON}
_TEXT_SIZES = {**_SIZES, 'max_position_embeddings': 64, 'vocab_size': 32000}
_IMAGE_SIZES = {**_SIZES, 'image_size': 224, 'patch_size': 16, 'vision_use_head': True}
_PIXELS = clip_config.HUGGING_FACE_PIXELS | {'do_center_crop': (False,)}

_HEAD = 'vision_model.head'
NAMES = KeyMap(
    {
        **clip_weights.HUGGING_FACE.modules,
        'text/projection': 'text_model.head',
        **{
            f'image/pooling/attention/{part}': f'{_HEAD}.attention.in_proj_{{}}[{n}]'
            for n, part in enumerate(('query', 'key', 'value'))
        },
        'image/pooling/attention/out': f'{_HEAD}.attention.out_proj',
        'image/pooling/norm': f'{_HEAD}.layernorm',
        'image/pooling/mlp_in': f'{_HEAD}.mlp.fc1',
        'image/pooling/mlp_out': f'{_HEAD}.mlp.fc2',
    },
    {
        **{
            name: clip_weights.HUGGING_FACE.variables[name]
            for name in ('logit_scale', 'text/positions', 'image/positions')
        },
        'logit_bias': 'logit_bias',
        'image/pooling/probe': f'{_HEAD}.probe',
    },
    unread=r'.*\.position_ids',
)


def load_siglip(path: str, vocabulary: str | None = None) -> ReleasedModel:
    """Reads a published SigLIP or SigLIP 2.

    Args:
      path: The path of a folder of Hugging Face with config, weights and tokenizer, or of the weights in it.
      vocabulary: The path of the tokenizer; None for the one in the folder.

    Returns:
      The model, in float32.

    Raises:
      UserError: If a file is missing or damaged, tensors are missing or left over, or it is another kind of model.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    model, resizing = read_config(folder / 'config.json')
    tensors = open_checkpoint(path, 'a SigLIP', NAMES.pattern()).tensors

    found = (str(folder / name) for name in TOKENIZERS if (folder / name).is_file())
    file = vocabulary or next(found, None)
    if file is None:
        raise UserError(f'{folder} has no {" or ".join(TOKENIZERS)}: add the one it was published with')
    pieces = Subwords.load(file, model['text']['max_length'])
    model['text']['pad'] = pieces.pad
    return with_towers(path, tensors, NAMES, model, pieces, file, resizing=resizing)


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the config's `model` of a published SigLIP without the padding of its texts, and keys of `data`.

    Args:
      path: The path of its `config.json`.

    Raises:
      UserError: If the file is damaged, or it is another kind of model.
    """
    content = read_json(path)
    if (kind := content.get('model_type')) != 'siglip':
        naflex = ', which is a NaFlex model of several resolutions' if kind == 'siglip2' else ''
        raise UserError(f"{path} has the model_type '{kind}'{naflex}: give a model of the type 'siglip'")
    text, image = clip_config.towers_of(path, content, (_TEXT_SIZES, _IMAGE_SIZES), ACTIVATIONS, title='SigLIP')
    if not image['vision_use_head']:
        raise UserError(f"{path} sets 'vision_use_head' to False: give a SigLIP with its head")
    size = image['image_size']
    file = path.with_name('preprocessor_config.json')
    pixels = read_json(file) if file.is_file() else {}
    known = {'size': ({'height': size, 'width': size}, size), 'resample': (BICUBIC, *INTERPOLATIONS.values())}
    clip_config.check_pixels(file, pixels, _PIXELS | known, 'SigLIP')
    mean, deviation = clip_config.normalization(file, pixels, ('image_mean', 'image_std'), (MEAN, DEVIATION))
    towers = [
        {ours: part[theirs] for ours, theirs in clip_config.HUGGING_FACE_TOWER.items()}
        | {'activation': ACTIVATIONS[part['hidden_act']], 'dtype': 'float32'}
        for part in (image, text)
    ]
    sizes = {'image_size': size, 'patch_size': image['patch_size'], 'mean': mean, 'deviation': deviation}
    model = {
        'name': 'clip.SigLIP',
        'embed_dim': image['hidden_size'],
        'image': {'name': 'siglip.PooledViT', **sizes, **towers[0]},
        'text': {'name': 'siglip.PaddedTransformer', 'max_length': text['max_position_embeddings'], **towers[1]},
        'initial_temperature': TEMPERATURE,
        'initial_bias': BIAS,
    }
    names = {number: name for name, number in INTERPOLATIONS.items()}
    return model, {'short_side': 0, 'interpolation': names[pixels.get('resample') or BICUBIC]}
