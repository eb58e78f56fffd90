"""Converts published SigLIP and SigLIP 2 models of fixed resolution, of Hugging Face, to configs and variables."""

from pathlib import Path
from typing import Any, Literal

from jitm.config.foreign import declared, neutral, read_declared, read_json
from jitm.data.images.transforms import INTERPOLATIONS
from jitm.data.text.pieces import Subwords
from jitm.errors import UserError
from jitm.importers import clip_config, clip_weights
from jitm.importers.containers import first_file, folder_of, open_checkpoint
from jitm.importers.processors import Pixels, of_square, read_pixels
from jitm.importers.released import ReleasedModel, with_towers
from jitm.importers.tensors import KeyMap, projections
from jitm.importers.tokenizer_files import check_tokenizer
from jitm.layers.siglip import DEVIATION, EPSILON, MEAN
from jitm.types import Count

# Initial values; a converted model has the learned ones.
TEMPERATURE = 0.1
BIAS = -10.0
TOKENIZERS = ('spiece.model', 'tokenizer.json')
ACTIVATIONS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu': 'gelu', 'quick_gelu': 'quick_gelu'}  # Hugging Face's -> ours
RESAMPLE = tuple(INTERPOLATIONS.values())


@declared
class _Tower(clip_config.Tower):
    hidden_act: Literal[*ACTIVATIONS] = 'gelu_pytorch_tanh'
    layer_norm_eps: Literal[EPSILON] = EPSILON

    def ours(self) -> dict[str, Any]:
        """Returns the tower in our config."""
        return {**super().ours(), 'activation': ACTIVATIONS[self.hidden_act], 'dtype': 'float32'}


@declared
class _Text(_Tower):
    max_position_embeddings: Count = 64
    vocab_size: Count = 32000


@declared
class _Image(_Tower, neutral(vision_use_head=True)):
    image_size: Count = 224
    patch_size: Count = 16


@declared
class _SigLIP(clip_config.Config):
    model_type: Literal['siglip']  # 'siglip2' is NaFlex, of several resolutions
    text_config: _Text | None = None
    vision_config: _Image | None = None


_HEAD = 'vision_model.head'
NAMES = KeyMap(
    {
        **clip_weights.HUGGING_FACE.modules,
        'text/projection': 'text_model.head',
        **projections('image/pooling/attention', f'{_HEAD}.attention.in_proj_{{}}[%(row)d]'),
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
    folder = folder_of(path)
    model, resizing = read_config(folder / 'config.json')
    tensors = open_checkpoint(path, 'a SigLIP', NAMES.pattern()).tensors

    file = vocabulary or first_file(folder, TOKENIZERS)
    if file is None:
        raise UserError(f'{folder} has no {" or ".join(TOKENIZERS)}: add the one it was published with')
    pieces = Subwords.load(str(file), model['text']['max_length'])
    if vocabulary is None:
        check_tokenizer(folder, pieces, model['text']['max_length'], masks=False)
    model['text']['pad'] = pieces.pad
    return with_towers(path, tensors, NAMES, model, pieces, str(file), resizing=resizing)


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the config's `model` of a published SigLIP without the padding of its texts, and keys of `data`.

    Args:
      path: The path of its `config.json`.

    Raises:
      UserError: If the file is damaged, or it is another kind of model.
    """
    model = read_declared(_SigLIP, path, read_json(path))
    text = model.text_config or _Text()
    image = model.vision_config or _Image()
    edge = image.image_size
    pixels = read_pixels(path.parent, of_square('Siglip', edge, RESAMPLE), Pixels(MEAN, DEVIATION))
    sizes = {'image_size': edge, 'patch_size': image.patch_size, 'mean': pixels.mean, 'deviation': pixels.deviation}
    section = {
        'name': 'clip.SigLIP',
        'embed_dim': image.hidden_size,
        'image': {'name': 'siglip.PooledViT', **sizes, **image.ours()},
        'text': {'name': 'siglip.PaddedTransformer', 'max_length': text.max_position_embeddings, **text.ours()},
        'initial_temperature': TEMPERATURE,
        'initial_bias': BIAS,
    }
    return section, {'short_side': 0, 'interpolation': pixels.interpolation}
