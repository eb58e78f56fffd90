"""The configs of published CLIP models, of Hugging Face, open_clip or OpenAI, as the config's `model`."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jitm.config.foreign import declared, neutral, read_declared, read_json
from jitm.errors import UserError
from jitm.importers import transformers_keys
from jitm.importers.containers import Tensors
from jitm.importers.processors import Deviation, Mean, Processor, processor_of, read_pixels
from jitm.importers.tensors import count_blocks, head_size, shape_of
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN, EPSILON
from jitm.types import Count, Index, Positive

ACTIVATIONS = ('gelu', 'quick_gelu')
TEMPERATURE = 0.07  # initial value; a converted model has the learned one
RESIDUAL = 'clip_resnet.ModifiedResNet'
RESNET_CHANNELS = 32  # channels of the last map for each channel of the stem
RESNET_STRIDE = 32  # pixels per cell of the last map

HUGGING_FACE_TOWER = {  # our key -> Hugging Face's
    'hidden_dim': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'mlp_dim': 'intermediate_size',
    'activation': 'hidden_act',
}
_LEGACY_END = 2  # in released configs; the end of a text is then its largest id, as ours is


@declared
class Config(transformers_keys.Encoder):
    """Keys of a model with towers, and of its towers."""

    # Initial values, sizes that the shapes of tensors state, and the padding after the end of a text.
    harmless = f"""{transformers_keys.HARMLESS}
        encoder_hidden_size logit_scale_init_value pad_token_id projection_dim projection_size
    """


@declared
class Tower(Config):
    """Keys of a tower, with the defaults of transformers, which files of before 2023 leave out."""

    hidden_size: Count = 768
    intermediate_size: Count = 3072
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    num_channels: Literal[3] = 3

    def ours(self) -> dict[str, Any]:
        """Returns the tower in our config."""
        return {key: getattr(self, theirs) for key, theirs in HUGGING_FACE_TOWER.items()}


@declared
class _Tower(Tower):
    hidden_act: Literal[ACTIVATIONS] = 'quick_gelu'
    layer_norm_eps: Literal[EPSILON] = EPSILON


@declared
class _Text(_Tower):
    hidden_size: Count = 512
    intermediate_size: Count = 2048
    num_attention_heads: Count = 8
    max_position_embeddings: Count = 77
    vocab_size: Count = 49408
    eos_token_id: Index = 49407


@declared
class _Image(_Tower):
    image_size: Count = 224
    patch_size: Count = 32


@declared
class _CLIP(Config):
    model_type: Literal['clip']
    projection_dim: Count = 512
    text_config: _Text | None = None
    vision_config: _Image | None = None
    text_config_dict: _Text | None = None  # which counts, with its defaults
    vision_config_dict: _Image | None = None


# Keys of training, and of towers of other libraries, whose names are None.
_OPEN_CLIP_HARMLESS = """
    attn_pooler_heads attn_pooler_queries correct_cls_mask custom_text eos_id hf_model_pretrained hf_pooler_type
    hf_proj_type init_logit_scale n_queries pad_id patch_dropout pooler_type proj timm_drop timm_drop_path
    timm_model_pretrained timm_pool timm_proj timm_proj_bias
    """


@declared
class _OpenCLIPTower(
    neutral(
        block_type=None,
        ls_init_value=None,
        act_kwargs=None,
        norm_kwargs=None,
        final_ln_after_pool=False,
        qk_norm=False,
        scaled_cosine_attn=False,
        scale_heads=False,
        scale_attn_inner=False,
        scale_attn=False,
        scale_fc=False,
    )
):
    harmless = _OPEN_CLIP_HARMLESS

    mlp_ratio: Positive = 4.0
    output_tokens: bool = False

    def ours(self, heads: int, activation: str) -> dict[str, Any]:
        """Returns the tower in our config."""
        return {
            'hidden_dim': self.width,
            'num_layers': self.layers,
            'num_heads': heads,
            'mlp_dim': int(self.width * self.mlp_ratio),
            'activation': activation,
        }


@declared
class _OpenCLIPText(
    _OpenCLIPTower,
    neutral(
        hf_model_name=None,
        hf_tokenizer_name=None,
        tokenizer_mode=None,
        tokenizer_kwargs=None,
        embed_cls=False,
        no_causal_mask=False,
        pool_type='argmax',
        proj_bias=False,
        proj_type='linear',
    ),
):
    context_length: Count = 77
    vocab_size: Count = 49408
    width: Count = 512
    heads: Count = 8
    layers: Count = 12


@declared
class _OpenCLIPImage(
    _OpenCLIPTower,
    neutral(
        timm_model_name=None,
        attentional_pool=False,
        global_average_pool=False,
        input_patchnorm=False,
        no_ln_pre=False,
        pos_embed_type='learnable',
        pool_type='tok',
    ),
):
    image_size: Count = 224
    layers: Count | tuple[Count, Count, Count, Count] = 12
    width: Count = 768
    head_width: Count = 64
    patch_size: Count | None = 16


@declared
class _OpenCLIPModel(neutral(init_logit_bias=None, multimodal_cfg=None, nonscalar_logit_scale=False)):
    harmless = _OPEN_CLIP_HARMLESS

    embed_dim: Count
    vision_cfg: _OpenCLIPImage
    text_cfg: _OpenCLIPText
    quick_gelu: bool = False


@declared
class _OpenCLIP:
    model_cfg: _OpenCLIPModel
    preprocess_cfg: dict | None = None


def _processor(edge: int) -> type[Processor]:
    """Declares a processor that resizes the shorter side of photos and crops the center."""
    return processor_of(
        'CLIP',
        size=[{'shortest_edge': edge}, edge],
        default_to_square=[False],
        do_center_crop=[True],
        crop_size=[{'height': edge, 'width': edge}, edge],
    )


def read_hugging_face(path: Path) -> dict[str, Any]:
    """Returns the config's `model` of a published CLIP from its `config.json`.

    Raises:
      UserError: If a file is damaged, or jitm does not know a key or its value.
    """
    model = read_declared(_CLIP, path, read_json(path))
    text = model.text_config_dict or model.text_config or _Text()
    image = model.vision_config_dict or model.vision_config or _Image()
    if text.eos_token_id not in (_LEGACY_END, text.vocab_size - 1):
        problem = f"has 'eos_token_id' {text.eos_token_id} of {text.vocab_size} tokens"
        raise UserError(
            f'{path} {problem}, but tokens that were added after the end of texts are not read: give another model'
        )
    pixels = read_pixels(path.parent, _processor(image.image_size))
    sizes = {'name': 'vit.ViT', 'image_size': image.image_size, 'patch_size': image.patch_size}
    words = {**text.ours(), 'max_length': text.max_position_embeddings}
    return _section(model.projection_dim, sizes | image.ours(), words, pixels.mean, pixels.deviation)


def read_open_clip(path: Path) -> dict[str, Any]:
    """Returns the config's `model` of a published CLIP from its `open_clip_config.json`; errors as above."""
    sections = read_declared(_OpenCLIP, path, read_json(path))
    edge = sections.model_cfg.vision_cfg.image_size

    @declared
    class Preprocessing(neutral(mode='RGB', resize_mode='shortest')):
        harmless = 'fill_color'

        interpolation: Literal['bicubic', 'random'] = 'bicubic'  # random in training only
        size: Literal[edge, [edge, edge]] = edge
        mean: Mean | None = None
        std: Deviation | None = None

    pixels = read_declared(Preprocessing, path, sections.preprocess_cfg or {}, 'preprocess_cfg.')
    return _of_open_clip(path, sections.model_cfg, pixels.mean or CLIP_MEAN, pixels.std or CLIP_DEVIATION)


def read_openai(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Returns the config's `model` of a CLIP of OpenAI, whose sizes are read from its tensors.

    Args:
      path: The path of the weights, for messages.
      tensors: All tensors.

    Raises:
      UserError: If a tensor that states a size is missing, or has another number of axes.
    """
    sizes = functools.partial(shape_of, str(path), tensors)
    length, text_width = sizes('positional_embedding', 2)
    text = {'context_length': length, 'width': text_width, 'heads': text_width // head_size(text_width)}
    text['layers'] = count_blocks(tensors, 'transformer.resblocks')
    if 'visual.proj' in tensors:
        width, _, _, edge = sizes('visual.conv1.weight', 4)
        layers = count_blocks(tensors, 'visual.transformer.resblocks')
        cells, _ = sizes('visual.positional_embedding', 2)
    else:
        width = sizes('visual.layer1.0.conv1.weight', 4)[0]
        edge = RESNET_STRIDE
        layers = [count_blocks(tensors, f'visual.layer{layer}') for layer in (1, 2, 3, 4)]
        cells, _ = sizes('visual.attnpool.positional_embedding', 2)
    image = {'image_size': edge * math.isqrt(cells - 1), 'layers': layers, 'width': width}  # position 0 is not a cell
    image |= {'head_width': head_size(width), 'patch_size': None if isinstance(layers, list) else edge}
    content = {'embed_dim': sizes('text_projection', 2)[1], 'quick_gelu': True, 'vision_cfg': image, 'text_cfg': text}
    return _of_open_clip(path, read_declared(_OpenCLIPModel, path, content), CLIP_MEAN, CLIP_DEVIATION)


def _of_open_clip(path: Path, model: _OpenCLIPModel, mean: Sequence, deviation: Sequence) -> dict[str, Any]:
    """Returns the config's `model` of the `model_cfg` of open_clip."""
    image = model.vision_cfg
    text = model.text_cfg
    activation = 'quick_gelu' if model.quick_gelu else 'gelu'
    if isinstance(image.layers, int):
        heads = image.width // image.head_width
        if not heads:
            raise UserError(f"{path} has a 'head_width' above the 'width': give another model")
        encoder = {'name': 'vit.ViT', 'patch_size': image.patch_size, **image.ours(heads, activation)}
    else:  # the blocks of the stages of a ResNet
        heads = RESNET_CHANNELS * image.width // image.head_width
        sizes = {'blocks': tuple(image.layers), 'stem_dim': image.width, 'num_heads': heads}
        encoder = {'name': RESIDUAL, 'train_norm': False, **sizes}
    encoder['image_size'] = image.image_size
    words = {'max_length': text.context_length, **text.ours(text.heads, activation)}
    return _section(model.embed_dim, encoder, words, mean, deviation)


def _section(embed_dim: int, image: dict, text: dict, mean: Sequence, deviation: Sequence) -> dict[str, Any]:
    """Returns the config's `model`."""
    return {
        'name': 'clip.CLIP',
        'embed_dim': embed_dim,
        'image': {'dtype': 'float32', 'mean': tuple(mean), 'deviation': tuple(deviation), **image},
        'text': {'name': 'clip_text.CausalTransformer', 'dtype': 'float32', **text},
        'initial_temperature': TEMPERATURE,
    }
