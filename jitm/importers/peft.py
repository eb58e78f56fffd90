"""Low-rank adapters in the format of peft: `adapter_config.json` and `adapter_model.safetensors`.

A and B of a linear layer are `base_model.model.MODULE.lora_A.weight` [r, d_in] and `.lora_B.weight` [d_out, r], where
MODULE is its name in transformers: in CLIPModel, SiglipModel, or the model of a text encoder, such as BertModel. The
scale s is alpha / r, or alpha / sqrt(r) with `use_rslora`.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import chex
import numpy as np
import safetensors.numpy
from flax import traverse_util

from jitm.config.foreign import declared, neutral, read_declared
from jitm.errors import UserError
from jitm.importers import bert_weights, clip_weights, siglip_weights
from jitm.importers.containers import ADAPTER, list_names, open_checkpoint
from jitm.importers.tensors import KeyMap
from jitm.layers.lora import SCALE, A, B, input_size, merge

WEIGHTS = ('adapter_model.safetensors', 'adapter_model.bin')
PREFIX = 'base_model.model.'
NAMES = {'clip.CLIP': clip_weights.HUGGING_FACE, 'clip.SigLIP': siglip_weights.NAMES}  # model -> names of its tensors
BERTS = {'text.BERTEncoder': 'text/bert/', 'uniter.UNITER': 'bert/', 'oscar.OSCAR': 'bert/'}  # reader -> its modules
POOLER = f'{PREFIX}pooler.'  # the states of a BERT do not depend on it
# Keys of training, and of the modules with adapters, which the names of the tensors state.
_HARMLESS = """
auto_mapping base_model_name_or_path ensure_weight_tying exclude_modules inference_mode layers_pattern
layers_to_transform lora_dropout megatron_core peft_version qalora_group_size r rank_pattern revision runtime_config
target_modules target_parameters task_type
"""
HARMLESS = frozenset(_HARMLESS.split())


@declared
class Config(
    neutral(
        peft_type='LORA',
        bias='none',
        fan_in_fan_out=False,
        lora_bias=False,
        use_dora=False,
        use_qalora=False,
        alora_invocation_tokens=None,
        arrow_config=None,
        corda_config=None,
        eva_config=None,
        kasa_config=None,
        layer_replication=None,
        lora_ga_config=None,
        megatron_config=None,
        monteclora_config=None,
        trainable_token_indices=None,
        use_bdlora=None,
        velora_config=None,
    )
):
    """`adapter_config.json`; initial weights of other kinds are subtracted from those of the model."""

    init_lora_weights: Literal[True, False, None, 'gaussian', 'orthogonal'] = True
    modules_to_save: Literal[None, []] = None
    lora_alpha: float = 8
    alpha_pattern: dict | None = None
    use_rslora: bool = False


def names_of(model: Mapping[str, Any]) -> KeyMap:
    """Returns the names of the tensors of a config's `model` in transformers: a dual encoder's, its BERT's, or none."""
    if model['name'] in NAMES:
        return NAMES[model['name']]
    for section in (model, model.get('text', {})):
        if root := BERTS.get(section.get('name')):
            modules = bert_weights.variant_of(section['size']).names.modules
            return KeyMap({root + ours: name for ours, name in modules.items()})
    return KeyMap()


def module_name(names: KeyMap, module: tuple[str, ...]) -> str | None:
    """Returns the name of a linear layer in transformers; None if it has none there."""
    try:
        name = names.name((*module, 'kernel'))
    except KeyError:
        return None
    return name.removesuffix('.weight') if name.endswith('.weight') else None


def export_adapters(model: Mapping[str, Any], params: chex.ArrayTree) -> dict[str, bytes]:
    """Returns the files of the adapters of a model.

    Args:
      model: The config's `model`.
      params: The parameters, with adapters.

    Returns:
      Name of a file -> its content.

    Raises:
      UserError: If there are no adapters, or transformers has no such model.
    """
    names = names_of(model)
    flat = traverse_util.flatten_dict(params)
    tensors = {}
    modules = sorted(path[:-1] for path in flat if path[-1] == A)
    if not modules:
        raise UserError('the run has no adapters: train it with members.NAME.lora')
    for module in modules:
        if (name := module_name(names, module)) is None:
            raise UserError(
                f"transformers has no name for the adapted module '{'/'.join(module)}': convert --to safetensors"
            )
        for leaf, part in ((A, 'lora_A'), (B, 'lora_B')):
            tensors[f'{PREFIX}{name}.{part}.weight'] = np.ascontiguousarray(np.asarray(flat[*module, leaf]).T)
    rank = flat[*modules[0], A].shape[1]
    config = {
        'peft_type': 'LORA',
        'r': rank,
        'lora_alpha': float(flat[*modules[0], SCALE]) * rank,
        'lora_dropout': 0.0,
        'target_modules': [module_name(names, module) for module in modules],
        'base_model_name_or_path': None,
        'inference_mode': True,
    }
    return {
        ADAPTER: (json.dumps(config, indent=2) + '\n').encode(),
        WEIGHTS[0]: safetensors.numpy.save(tensors, {'format': 'pt'}),
    }


def apply_adapters(path: str, model: Mapping[str, Any], params: chex.ArrayTree) -> chex.ArrayTree:
    """Returns the parameters of a model with merged adapters.

    Args:
      path: The folder of the adapters.
      model: The config's `model`.
      params: The parameters of the model that the adapters were trained with.

    Raises:
      UserError: If a file is missing or damaged, states what is not read, or does not fit the model.
    """
    folder = Path(path)
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None or not (folder / ADAPTER).is_file():
        raise UserError(f'{folder} has no {ADAPTER} with {" or ".join(WEIGHTS)}: give a folder of adapters of peft')
    config = read_declared(Config, folder / ADAPTER, harmless=HARMLESS, remedy='merge the adapters with peft first')
    tensors = dict(open_checkpoint(str(weights), 'adapters', re.compile(rf'{re.escape(PREFIX)}.*\.weight')).tensors)
    names = names_of(model)
    flat = traverse_util.flatten_dict(params)
    for *module, leaf in [*flat]:
        name = module_name(names, tuple(module)) if leaf == 'kernel' else None
        a, b = (tensors.pop(f'{PREFIX}{name}.lora_{part}.weight', None) for part in 'AB')
        if a is None or b is None:
            continue
        a = a().T
        b = b().T
        kernel = flat[*module, 'kernel']
        size = input_size((*module, leaf), kernel)
        if a.shape[0] != size or b.shape != (a.shape[1], kernel.size // size):
            raise UserError(
                f"{weights} has adapters of another shape than '{name}' of the model: give those of this size"
            )
        flat |= {(*module, A): a, (*module, B): b, (*module, SCALE): _scale(config, name, a.shape[1])}
    unknown = [name for name in tensors if not name.startswith(POOLER)]
    if unknown:
        raise UserError(f'{weights} has unknown tensors ({list_names(unknown)}): give adapters of this model')
    return merge(traverse_util.unflatten_dict(flat))


def _scale(config: Config, module: str, rank: int) -> np.float32:
    """Returns the scale of the adapters of a module; `alpha_pattern` has patterns of the ends of names."""
    patterns = config.alpha_pattern or {}
    alphas = (alpha for pattern, alpha in patterns.items() if re.fullmatch(rf'(.*\.)?({pattern})', module))
    alpha = next(alphas, config.lora_alpha)
    return np.float32(alpha / (math.sqrt(rank) if config.use_rslora else rank))
