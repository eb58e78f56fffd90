"""Low-rank adapters of transformers (LoRA, Hu et al., 2022): a change of the parameters, not of the models.

Beside an adapted `kernel` stand `lora_a` A [d_in, r], `lora_b` B [r, d_out] and the constant `lora_scale` s, and the
model is applied with kernel + s A B. A and B train. The rest of a tower of transformer blocks (see `towers`) is frozen,
as in peft and CLIP-LoRA (Zanella and Ben Ayed, 2024). Whatever is outside of towers, such as new linear layers or a
temperature, trains as without adapters.

B is 0 at first, so that the model is unchanged. A is uniform within 1 / sqrt(d_in), as in the released loralib and in
peft; the paper draws it from a normal distribution. The dropout that both can apply to the input of A has no place in
a change of parameters, and is left out.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree, PRNGKey
from flax import traverse_util

from jitm.errors import UserError
from jitm.layers.towers import Path, path_of, place_of, towers
from jitm.types import Count, Positive

A, B, SCALE = LEAVES = ('lora_a', 'lora_b', 'lora_scale')
ATTENTION = ('query', 'key', 'value', 'out')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRA:
    """The adapters of a member.

    Attributes:
      rank: The rank r of the change of each kernel.
      alpha: The numerator of s = alpha / r.
      modules: The linear layers of each block that are adapted: the four of the attention, mlp_in and mlp_out; none
        without adapters.
    """

    rank: Count = 8
    alpha: Positive = 8.0
    modules: tuple[Literal['query', 'key', 'value', 'out', 'mlp_in', 'mlp_out'], ...] = ATTENTION

    def add(self, key: PRNGKey, params: ArrayTree) -> ArrayTree:
        """Returns the parameters with adapters in all blocks.

        Raises:
          UserError: If there is no transformer block to adapt.
        """
        if not self.modules:
            return params
        flat = traverse_util.flatten_dict(params)
        roots = towers(params)
        if not roots:
            raise UserError("config key 'members.NAME.lora' is set, but the model has no transformer: leave it out")
        adapters = {}
        for path, kernel in sorted(flat.items()):
            place = place_of(path, roots)
            in_block = place is not None and 0 < place.group <= place.layers
            if not in_block or path[-1] != 'kernel' or path[-2] not in self.modules:
                continue
            size = input_size(path, kernel)
            bound = 1 / math.sqrt(size)
            key_of_kernel = jax.random.fold_in(key, len(adapters))
            a = jax.random.uniform(key_of_kernel, (size, self.rank), minval=-bound, maxval=bound)
            values = a, jnp.zeros((self.rank, kernel.size // size)), jnp.float32(self.alpha / self.rank)
            adapters |= {(*path[:-1], name): value for name, value in zip(LEAVES, values, strict=True)}
        return traverse_util.unflatten_dict(flat | adapters)


NO_ADAPTERS = LoRA(modules=())


def input_size(path: Path, kernel: Array) -> int:
    """Returns d_in of a kernel: [d_in, ...], or [heads, d_head, d_out] behind the heads of an attention."""
    return math.prod(kernel.shape[:-1]) if path[-2] == 'out' else kernel.shape[0]


def has_adapters(params: ArrayTree) -> bool:
    """Returns whether parameters have adapters."""
    return any(keys[-1].key == A for keys, _ in jax.tree_util.tree_leaves_with_path(params))


def merge(params: ArrayTree) -> ArrayTree:
    """Returns the parameters of the model: each kernel + s A B; numpy arrays stay numpy arrays."""
    if not has_adapters(params):
        return params
    flat = traverse_util.flatten_dict(params)
    for *module, _ in [path for path in flat if path[-1] == A]:
        a, b, scale = (flat.pop((*module, name)) for name in LEAVES)
        kernel = flat[*module, 'kernel']
        flat[*module, 'kernel'] = kernel + (scale * (a @ b)).reshape(kernel.shape)
    return traverse_util.unflatten_dict(flat)


def select_frozen(params: ArrayTree) -> ArrayTree:
    """Returns for each parameter whether adapters freeze it: with any, all of the towers but themselves."""
    roots = towers(params) if has_adapters(params) else {}

    def is_frozen(keys, _):
        path = path_of(keys)
        return path[-1] not in (A, B) and place_of(path, roots) is not None

    return jax.tree_util.tree_map_with_path(is_frozen, params)
