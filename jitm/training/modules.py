"""The modules of a model by patterns of their paths, and the factors of their learning rates."""

import math
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

import chex
import jax

from jitm.errors import UserError, did_you_mean
from jitm.layers.towers import Path, group_of, path_of, paths_of, tower_of, towers


def select_modules(params: chex.ArrayTree, patterns: Collection[str]) -> chex.ArrayTree:
    """Returns for each parameter whether it is in one of some modules.

    Args:
      params: The parameters.
      patterns: Names of modules, such as 'bert', or consecutive names of a path, such as 'text/encoder/block_3'; each
        name may have the wildcards of `fnmatch`, such as 'encoder/block_[0-5]'.
    """
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: any(_matches(pattern, path_of(keys)) for pattern in patterns), params
    )


def _runs(path: Path, length: int) -> Iterator[Path]:
    """Yields all runs of consecutive names of a path."""
    return (path[start : start + length] for start in range(len(path) - length + 1))


def _matches(pattern: str, path: Path) -> bool:
    names = pattern.split('/')
    return any(all(map(fnmatchcase, run, names)) for run in _runs(path, len(names)))


def rate_factors(params: chex.ArrayTree, factors: Mapping[str, float], layer_decay: float = 1.0) -> chex.ArrayTree:
    """Returns the factor of the learning rate of each parameter.

    Args:
      params: The parameters; only their paths are read.
      factors: A pattern of `select_modules` -> factor; a parameter in several of them has the product.
      layer_decay: The factor d of each group of a tower over the next one: d^(L + 1 - n) for group n, as in open_clip.
        Parameters outside of towers have 1.
    """
    layers = towers(params)

    def factor(keys: tuple, _: chex.Array) -> float:
        path = path_of(keys)
        given = math.prod(value for pattern, value in factors.items() if _matches(pattern, path))
        root = tower_of(path, layers)
        return given if root is None else given * layer_decay ** (layers[root] + 1 - group_of(path, root, layers[root]))

    return jax.tree_util.tree_map_with_path(factor, params)


def check_rates(params: chex.ArrayTree, factors: Collection[str], layer_decay: float = 1.0) -> None:
    """Raises a UserError if a pattern fits no module, or rates fall by layer in a model without transformers."""
    paths = paths_of(params)
    for pattern in factors:
        if not any(_matches(pattern, path) for path in paths):
            known = {'/'.join(run) for path in paths for run in _runs(path, pattern.count('/') + 1)}
            near = did_you_mean(pattern, known)
            raise UserError(f"optimizer factors name no module of the model: '{pattern}'{near}")
    if layer_decay != 1 and not towers(params):
        raise UserError(f"config key 'optimizer.layer_decay' is {layer_decay}, but the model has no transformer")
