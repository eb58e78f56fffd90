"""The names of CLIP's tensors, Hugging Face's and those of OpenAI and open_clip, in one table.

The table is read in both directions. OpenAI's files have queries, keys and values in one tensor, 'attn.in_proj_weight';
in the table they have names of their own, which `unpack` and `pack` translate.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from jitm.importers.key_maps import KeyMap, Tensors, part

# Module of our model, below a block or below the model -> Hugging Face's module, OpenAI's.
_BLOCK = {
    'attention/query': ('self_attn.q_proj', 'attn.in_proj_0'),
    'attention/key': ('self_attn.k_proj', 'attn.in_proj_1'),
    'attention/value': ('self_attn.v_proj', 'attn.in_proj_2'),
    'attention/out': ('self_attn.out_proj', 'attn.out_proj'),
    'attention_norm': ('layer_norm1', 'ln_1'),
    'mlp_norm': ('layer_norm2', 'ln_2'),
    'mlp_in': ('mlp.fc1', 'mlp.c_fc'),
    'mlp_out': ('mlp.fc2', 'mlp.c_proj'),
}
_TOWERS = {
    'text/encoder/block': ('text_model.encoder.layers', 'transformer.resblocks'),
    'image/encoder/block': ('vision_model.encoder.layers', 'visual.transformer.resblocks'),
}
_MODULES = {
    'text/words': ('text_model.embeddings.token_embedding', 'token_embedding'),
    'text/norm_out': ('text_model.final_layer_norm', 'ln_final'),
    'image/patches': ('vision_model.embeddings.patch_embedding', 'visual.conv1'),
    'image/norm_in': ('vision_model.pre_layrnorm', 'visual.ln_pre'),  # sic
    'image/norm_out': ('vision_model.post_layernorm', 'visual.ln_post'),
}
_VARIABLES = {
    'logit_scale': ('logit_scale', 'logit_scale'),
    'text/positions': ('text_model.embeddings.position_embedding.weight', 'positional_embedding'),
    'text/projection/kernel': ('text_projection.weight', 'text_projection'),
    'image/class_embedding': ('vision_model.embeddings.class_embedding', 'visual.class_embedding'),
    'image/positions': ('vision_model.embeddings.position_embedding.weight', 'visual.positional_embedding'),
    'image/projection/kernel': ('visual_projection.weight', 'visual.proj'),
}
LAYERS = 64  # blocks of a tower, and in a layer of a residual network, at most
_RESIDUAL = {  # of a residual network, which only OpenAI's names have
    **{f'image/{kind}{n}': f'visual.{kind}{n}' for n in (1, 2, 3) for kind in ('conv', 'bn')},
    **{
        f'image/layer{layer}_{n}/{ours}': f'visual.layer{layer}.{n}.{theirs}'
        for layer in range(1, 5)
        for n in range(LAYERS)
        for ours, theirs in (
            *((f'{kind}{number}', f'{kind}{number}') for number in (1, 2, 3) for kind in ('conv', 'bn')),
            ('downsample_0', 'downsample.0'),
            ('downsample_1', 'downsample.1'),
        )
    },
    'image/attnpool/query': 'visual.attnpool.q_proj',
    'image/attnpool/key': 'visual.attnpool.k_proj',
    'image/attnpool/value': 'visual.attnpool.v_proj',
    'image/attnpool/out': 'visual.attnpool.c_proj',
}


def _key_map(column: int) -> KeyMap:
    modules = {ours: theirs[column] for ours, theirs in _MODULES.items()} | {
        f'{tower}_{n}/{ours}': f'{towers[column]}.{n}.{theirs[column]}'
        for tower, towers in _TOWERS.items()
        for n in range(LAYERS)
        for ours, theirs in _BLOCK.items()
    }
    return KeyMap(modules, {ours: theirs[column] for ours, theirs in _VARIABLES.items()})


HUGGING_FACE, OPENAI = _key_map(0), _key_map(1)
RESIDUAL = KeyMap(
    OPENAI.modules | _RESIDUAL, OPENAI.variables | {'image/positions': 'visual.attnpool.positional_embedding'}
)
_TRANSPOSED = ('text_projection', 'visual.proj')  # of OpenAI's, which are no linear layers
_PACKED = re.compile(r'(.*\.attn\.in_proj)_(weight|bias)')
_PART = re.compile(r'(.*\.attn\.in_proj)_(\d)\.(weight|bias)')


def find_key_map(names: Iterable[str], image: str) -> KeyMap:
    """Returns the table for the names in a file, whose image encoder has this name in the config's `model`."""
    if image == 'clip_resnet.ModifiedResNet':
        return RESIDUAL
    return HUGGING_FACE if any(name.startswith('text_model.') for name in names) else OPENAI


def unpack(tensors: Tensors) -> Tensors:
    """Returns the tensors of a file with those that the table names."""
    unpacked = {}
    for name, read in tensors.items():
        if match := _PACKED.fullmatch(name):
            unpacked |= {f'{match[1]}_{n}.{match[2]}': functools.partial(part, read, n) for n in range(3)}
        else:
            unpacked[name] = functools.partial(_transpose, read) if name in _TRANSPOSED else read
    return unpacked


def _transpose(read: Callable[[], np.ndarray]) -> np.ndarray:
    return read().T


def pack(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of a file from those that the table names, the inverse of `unpack`."""
    packed = {stored_name(name): tensor.T if name in _TRANSPOSED else tensor for name, tensor in tensors.items()}
    parts = {match[1] + '_' + match[3]: match[1] for name in tensors if (match := _PART.fullmatch(name))}
    for name, prefix in parts.items():
        leaf = name.removeprefix(f'{prefix}_')
        packed[name] = np.concatenate([tensors[f'{prefix}_{n}.{leaf}'] for n in range(3)])
    return {name: np.asarray(tensor, order='C') for name, tensor in packed.items()}


def stored_name(name: str) -> str:
    """Returns the name in a file of a tensor, which is another one for queries, keys and values."""
    return _PART.sub(r'\1_\3', name)
