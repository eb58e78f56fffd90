"""Converts published image-text matching models of BLIP, of Hugging Face or the authors, to configs and variables."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jitm.config.foreign import declared, read_declared, read_json
from jitm.data.text.blip_pieces import MAX_IDS, of_blip
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.importers import bert_weights, clip_config
from jitm.importers.containers import Tensors, first_file, folder_of, open_checkpoint
from jitm.importers.processors import of_square, read_pixels
from jitm.importers.released import ReleasedModel, with_towers
from jitm.importers.tensors import KeyMap, below, count_blocks, head_size, projections, rename, shape_of
from jitm.importers.tokenizer_files import check_tokenizer
from jitm.layers import transformer
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN
from jitm.types import Count, Positive

TEMPERATURE = 0.07  # initial value, and that of a file without one
EPSILON = 1e-6  # layer normalizations of the ViT in the authors' code
TOKENIZERS = ('vocab.txt', 'tokenizer.json')

_VISION = 'vision_model'
_BERT = 'text_encoder'
_CROSS = f'{_BERT}.encoder.layer.*.crossattention'
_BLOCK = {
    **projections('attention', 'self_attn.qkv.{}[%(row)d]'),
    'attention/out': 'self_attn.projection',
    'attention_norm': 'layer_norm1',
    'mlp_norm': 'layer_norm2',
    'mlp_in': 'mlp.fc1',
    'mlp_out': 'mlp.fc2',
}
_BERT_BLOCKS = {ours: theirs for ours, theirs in bert_weights.MODULES.items() if ours.startswith('encoder')}
NAMES = KeyMap(
    {
        'image/patches': f'{_VISION}.embeddings.patch_embedding',
        'image/norm_out': f'{_VISION}.post_layernorm',
        'image/projection': 'vision_proj',
        **below(_BLOCK, 'image/encoder/block_*/', f'{_VISION}.encoder.layers.*.'),
        **below(_BERT_BLOCKS, 'text/', f'{_BERT}.'),
        **projections('text/encoder/block_*/cross_attention', f'{_CROSS}.self.%(part)s'),
        'text/encoder/block_*/cross_attention/out': f'{_CROSS}.output.dense',
        'text/encoder/block_*/cross_norm': f'{_CROSS}.output.LayerNorm',
        'text/words': f'{_BERT}.embeddings.word_embeddings',
        'text/norm_in': f'{_BERT}.embeddings.LayerNorm',
        'text/projection': 'text_proj',
        'itm_head': 'itm_head',
    },
    {
        'logit_scale': 'logit_scale',
        'image/class_embedding': f'{_VISION}.embeddings.class_embedding',
        'image/positions': f'{_VISION}.embeddings.position_embedding',
        'text/positions': f'{_BERT}.embeddings.position_embeddings.weight',
    },
    # Copies that are moving averages, queues of their vectors, and constants.
    unread=r'(visual_encoder|text_encoder|vision_proj|text_proj)_m\..*|(image|text|idx|ptr)_queue|queue_ptr|temp|'
    r'.*\.position_ids',
)
# The authors' names -> Hugging Face's.
_new_name = functools.partial(
    rename,
    (
        (r'^visual_encoder\.cls_token$', f'{_VISION}.embeddings.class_embedding'),
        (r'^visual_encoder\.pos_embed$', f'{_VISION}.embeddings.position_embedding'),
        (r'^visual_encoder\.patch_embed\.proj\.', f'{_VISION}.embeddings.patch_embedding.'),
        (r'^visual_encoder\.norm\.', f'{_VISION}.post_layernorm.'),
        (r'^visual_encoder\.blocks\.(\d+)\.attn\.proj\.', rf'{_VISION}.encoder.layers.\1.self_attn.projection.'),
        (r'^visual_encoder\.blocks\.(\d+)\.attn\.', rf'{_VISION}.encoder.layers.\1.self_attn.'),
        (r'^visual_encoder\.blocks\.(\d+)\.norm([12])\.', rf'{_VISION}.encoder.layers.\1.layer_norm\2.'),
        (r'^visual_encoder\.blocks\.', f'{_VISION}.encoder.layers.'),
    ),
)


@declared
class _Tower(clip_config.Tower):
    hidden_act: Literal[clip_config.ACTIVATIONS] = 'gelu'


@declared
class _Text(_Tower):
    num_attention_heads: Count = 8
    max_position_embeddings: Count = 512
    vocab_size: Count = 30524
    layer_norm_eps: Literal[transformer.EPSILON] = transformer.EPSILON
    is_decoder: Literal[True] = True  # its words attend to the image, but not only to those before them


@declared
class _Image(_Tower):
    image_size: Count = 384
    patch_size: Count = 16
    layer_norm_eps: Positive = 1e-5


@declared
class _BLIP(clip_config.Config):
    model_type: Literal['blip']
    image_text_hidden_size: Count = 256
    text_config: _Text | None = None
    vision_config: _Image | None = None


def load_blip(path: str, vocabulary: str | None = None) -> ReleasedModel:
    """Reads a published BLIP with its head for image-text matching.

    Args:
      path: The path of a folder of Hugging Face with config, weights and tokenizer, or of a file of the authors, such
        as `model_base_retrieval_coco.pth`, whose sizes are those of its tensors.
      vocabulary: The path of the vocab.txt of the BERT; None for the tokenizer in the folder.

    Returns:
      The model, in float32. Its temperature is the initial one if the file has none.

    Raises:
      UserError: If a file is missing or damaged, tensors are missing or left over, or it is another kind of model.
    """
    folder = folder_of(path)
    tensors = dict(open_checkpoint(path, 'a BLIP', NAMES.pattern(), _new_name).tensors)
    config = folder / 'config.json'
    model = _read_config(config) if config.is_file() else _read_sizes(path, tensors)

    temperature = tensors.get('temp', lambda: np.array(TEMPERATURE))
    tensors['logit_scale'] = lambda: -np.log(temperature())
    for name in ('class_embedding', 'position_embedding'):  # which have leading axes of size 1
        stored = f'{_VISION}.embeddings.{name}'
        if stored in tensors:
            tensors[stored] = functools.partial(_squeezed, tensors[stored])

    file = vocabulary or first_file(folder, TOKENIZERS)
    if file is None:
        raise UserError(f'{folder} has no {" or ".join(TOKENIZERS)}: add that of its BERT, or give --vocabulary')
    pieces = of_blip(WordPiece.load(str(file)).words)
    if vocabulary is None:
        check_tokenizer(folder, pieces, MAX_IDS, masks=True)
    resizing = {'short_side': 0, 'interpolation': 'bicubic'}
    return with_towers(path, tensors, NAMES, model, pieces, str(file), resizing=resizing)


def _squeezed(read: Callable[[], np.ndarray]) -> np.ndarray:
    tensor = read()
    return tensor.reshape([size for size in tensor.shape if size > 1])


def _read_config(path: Path) -> dict[str, Any]:
    """Returns the config's `model` of a BLIP from its `config.json`.

    Raises:
      UserError: If the file is damaged, or it is another kind of model.
    """
    model = read_declared(_BLIP, path, read_json(path))
    text = model.text_config or _Text()
    image = model.vision_config or _Image()
    edge = image.image_size
    pixels = read_pixels(path.parent, of_square('Blip', edge))
    photos = {'image_size': edge, 'patch_size': image.patch_size, 'epsilon': image.layer_norm_eps}
    photos |= {'mean': pixels.mean, 'deviation': pixels.deviation}
    words = {'max_length': text.max_position_embeddings, **text.ours()}
    return _section(model.image_text_hidden_size, photos | image.ours(), words)


def _read_sizes(path: str, tensors: Tensors) -> dict[str, Any]:
    """Returns the config's `model` of a file of the authors, from the shapes of its tensors.

    Raises:
      UserError: If a tensor that states a size is missing, or has another number of axes.
    """
    shape = functools.partial(shape_of, path, tensors)
    width, _, _, edge = shape(f'{_VISION}.embeddings.patch_embedding.weight', 4)
    cells = shape(f'{_VISION}.embeddings.position_embedding', 3)[1] - 1
    photos = {'image_size': edge * math.isqrt(cells), 'patch_size': edge, 'epsilon': EPSILON}
    photos |= {'mean': CLIP_MEAN, 'deviation': CLIP_DEVIATION}
    length, hidden = shape(f'{_BERT}.embeddings.position_embeddings.weight', 2)

    def tower(size: int, layer: str, mlp: str) -> dict[str, Any]:
        sizes = {'hidden_dim': size, 'num_layers': count_blocks(tensors, layer), 'num_heads': size // head_size(size)}
        return sizes | {'mlp_dim': shape(f'{layer}.0.{mlp}.weight', 2)[0], 'activation': 'gelu'}

    image = tower(width, f'{_VISION}.encoder.layers', 'mlp.fc1')
    text = tower(hidden, f'{_BERT}.encoder.layer', 'intermediate.dense')
    return _section(shape('vision_proj.weight', 2)[0], photos | image, {'max_length': length, **text})


def _section(embed_dim: int, image: dict, text: dict) -> dict[str, Any]:
    """Returns the config's `model`."""
    return {
        'name': 'blip.BLIP',
        'embed_dim': embed_dim,
        'image': {'name': 'blip.NormalizedViT', 'dtype': 'float32', **image},
        'text': {'name': 'blip.MultimodalBERT', 'dtype': 'float32', **text},
        'initial_temperature': TEMPERATURE,
    }
