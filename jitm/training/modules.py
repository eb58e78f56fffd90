"""The modules of a model by patterns of their paths, and the factors of their learning rates."""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

import jax
from chex import ArrayTree

from jitm.errors import UserError, did_you_mean
from jitm.layers.towers import Path, path_of, paths_of, place_of, towers

LOWER = re.compile(r'lower_(100|\d\d?)%')


def select_modules(params: ArrayTree, patterns: Collection[str]) -> ArrayTree:
    """Returns for each parameter whether it is in one of some modules.

    Args:
      params: The parameters.
      patterns: Names of modules, such as 'bert', or consecutive names of a path, such as 'text/encoder/block_3'; each
        name may have the wildcards of `fnmatch`, such as 'encoder/block_[0-5]'. 'lower_50%' is the embeddings and the
        lower half of the blocks of every tower; 'lower_100%' is all but its projection.
    """
    roots = towers(params)
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: any(_matches(pattern, path_of(keys), roots) for pattern in patterns), params
    )


def _runs(path: Path, length: int) -> Iterator[Path]:
    """Yields all runs of consecutive names of a path."""
    return (path[start : start + length] for start in range(len(path) - length + 1))


def _matches(pattern: str, path: Path, roots: Mapping[Path, int]) -> bool:
    percent = LOWER.fullmatch(pattern)
    if percent:
        place = place_of(path, roots)
        return place is not None and place.group <= place.layers * int(percent[1]) // 100
    names = pattern.split('/')
    return any(all(map(fnmatchcase, run, names)) for run in _runs(path, len(names)))


def rate_factors(params: ArrayTree, factors: Mapping[str, float], layer_decay: float = 1.0) -> ArrayTree:
    """Returns the factor of the learning rate of each parameter.

    Args:
      params: The parameters; only their paths are read.
      factors: A pattern of `select_modules` -> factor; a parameter in several of them has the product.
      layer_decay: The factor d of each group of a tower over the next one: d^(L + 1 - n) for group n, as in open_clip.
        Parameters outside of towers have 1.
    """
    roots = towers(params)

    def factor(keys, _):
        path = path_of(keys)
        factor_of_path = math.prod(value for pattern, value in factors.items() if _matches(pattern, path, roots))
        place = place_of(path, roots)
        return factor_of_path * layer_decay ** (place.layers + 1 - place.group) if place else factor_of_path

    return jax.tree_util.tree_map_with_path(factor, params)


def check_rates(params: ArrayTree, factors: Collection[str], layer_decay: float = 1.0) -> None:
    """Raises a UserError if a pattern fits no module, or a key needs layers that the model does not have."""
    paths = paths_of(params)
    roots = towers(params)
    of_layers = [f'factors.{pattern}' for pattern in factors if LOWER.fullmatch(pattern)]
    of_layers += ['layer_decay'] if layer_decay != 1 else []
    if of_layers and not roots:
        raise UserError(f"config key 'optimizer.{of_layers[0]}' is set, but the model has no transformer: leave it out")
    for pattern in factors:
        if not any(_matches(pattern, path, roots) for path in paths):
            length = pattern.count('/') + 1
            runs = itertools.chain.from_iterable(_runs(path, length) for path in paths)
            near = did_you_mean(pattern, set(map('/'.join, runs)))
            raise UserError(f"optimizer factors name no module of the model: '{pattern}'{near}")
