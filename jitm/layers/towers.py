"""The towers of transformers in a model, by the paths of its parameters.

A tower is the module around an `encoder` of blocks: `text` and `image` of CLIP, `text/bert` of a BERT encoder. From its
input to its output it has L + 2 groups, those of open_clip: 0 are the embeddings, 1 to L the blocks, the last of them
with the final normalization, and L + 1 the projection or the pooling.
"""

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
from chex import ArrayTree

Path = tuple[str, ...]  # the names of modules, and of a parameter
BLOCK = re.compile(r'block_(\d+)')
FINAL = 'norm_out'  # the modules of a tower behind its blocks
TOP = ('projection', 'pooling')


def path_of(keys: tuple[jax.tree_util.DictKey, ...]) -> Path:
    """Returns the names in a path of `jax.tree_util`."""
    return tuple(key.key for key in keys)


def paths_of(params: ArrayTree) -> list[Path]:
    """Returns the paths of all parameters, masked ones too."""
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: not isinstance(x, Mapping))
    return [path_of(keys) for keys, _ in leaves]


def towers(params: ArrayTree) -> dict[Path, int]:
    """Returns the path of each tower, and its number L of blocks."""
    names_of: dict[Path, set[str]] = {}
    for path in paths_of(params):
        for n, (outer, inner) in enumerate(itertools.pairwise(path)):
            if outer == 'encoder' and BLOCK.fullmatch(inner):
                names_of.setdefault(path[:n], set()).add(inner)
    return {root: len(blocks) for root, blocks in names_of.items()}


class Place(NamedTuple):
    """The place of a parameter in a tower: its group, 0 to L + 1, and the number L of blocks."""

    group: int
    layers: int


def place_of(path: Path, roots: Mapping[Path, int]) -> Place | None:
    """Returns the place of a parameter in one of some towers; None if it is outside of them.

    Args:
      path: The path of the parameter.
      roots: The result of `towers`.
    """
    root = next((root for root in roots if path[: len(root)] == root), None)
    if root is None:
        return None
    layers = roots[root]
    module, *inner = path[len(root) :]
    block = BLOCK.fullmatch(inner[0]) if module == 'encoder' else None
    if block:
        return Place(int(block[1]) + 1, layers)
    return Place({FINAL: layers, **dict.fromkeys(TOP, layers + 1)}.get(module, 0), layers)
