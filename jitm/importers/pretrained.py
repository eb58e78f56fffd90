"""Replaces initial parameters of a model by published weights."""

import logging
from collections.abc import Mapping, Sequence

import chex
import numpy as np
from flax import traverse_util

from jitm.errors import ArgumentError
from jitm.importers.bert import load_bert
from jitm.importers.cnn import load_network
from jitm.importers.oscar import load_oscar
from jitm.importers.uniter import load_uniter
from jitm.importers.word_vectors import load_word_vectors

Replacements = dict[tuple[str, ...], np.ndarray]
Variables = Mapping[str, chex.ArrayTree]


def load_pretrained(
    variables: Variables, words: Sequence[str], *, bert: str, image: str, uniter: str, oscar: str, word_vectors: str
) -> dict[str, Replacements]:
    """Reads the published weights that a config names in `initialize`.

    Args:
      variables: 'params' and 'batch_stats' of a model; only shapes are read.
      words: The V words of its vocabulary.
      bert: Path of weights for the module `bert`, see `load_bert`; '' for none.
      image: Path of weights for the module `network`, see `load_network`; '' for none.
      uniter: Path of weights for a whole UNITER, see `load_uniter`; '' for none.
      oscar: Path of weights for an OSCAR, see `load_oscar`; '' for none.
      word_vectors: Path of a text file for the module `embedding`, see `load_word_vectors`; '' for none.

    Returns:
      'params' and 'batch_stats' -> path of a variable -> its values, NaN where the file has none.

    Raises:
      UserError: if a file cannot be read or has other shapes.
      ArgumentError: if the model has no such module.
    """
    flat = {part: traverse_util.flatten_dict(tree) for part, tree in variables.items()}
    params, loaded = flat['params'], {part: {} for part in flat}
    if bert:
        root = _module(params, 'bert')
        loaded['params'] |= _above(root, load_bert(bert, _below(root, params)))
    if image:
        root = _module(params, 'network', argument='image')
        network = load_network(image, _below(root, params), _below(root, flat['batch_stats']))
        for part, tree in network.items():
            loaded[part] |= _above(root, tree)
    if uniter:
        _module(params, 'regions', argument='uniter')
        loaded['params'] |= _above((), load_uniter(uniter, _below((), params)))
    if oscar:
        _module(params, 'region_features', argument='oscar')
        loaded['params'] |= _above((), load_oscar(oscar, _below((), params)))
    if word_vectors:
        path = (*_module(params, 'embedding', argument='word_vectors'), 'embedding')
        vectors = load_word_vectors(word_vectors, words, params[path].shape[1])
        found = len(words) - np.isnan(vectors).any(axis=1).sum()
        logging.warning('%s has vectors of %d of the %d words', word_vectors, found, len(words))
        loaded['params'][path] = vectors
    return loaded


def replace(params: chex.ArrayTree, replacements: Replacements) -> chex.ArrayTree:
    """Returns the parameters with the loaded values; NaN keeps the initial value."""
    flat = traverse_util.flatten_dict(params)
    loaded = {path: np.where(np.isnan(values), flat[path], values) for path, values in replacements.items()}
    return traverse_util.unflatten_dict(flat | loaded)


def _below(root: tuple[str, ...], flat: Mapping[tuple[str, ...], chex.Array]) -> chex.ArrayTree:
    """Returns the tree of the variables of the module at a path."""
    below = {path[len(root) :]: leaf for path, leaf in flat.items() if path[: len(root)] == root}
    return traverse_util.unflatten_dict(below)


def _above(root: tuple[str, ...], tree: chex.ArrayTree) -> Replacements:
    """Returns the variables of the module at a path by their whole paths."""
    return {root + path: leaf for path, leaf in traverse_util.flatten_dict(tree).items()}


def _module(flat: dict[tuple[str, ...], chex.Array], name: str, argument: str = '') -> tuple[str, ...]:
    """Returns the path of the module of this name; the argument of the caller is by default equal to the name."""
    paths = {path[: path.index(name) + 1] for path in flat if name in path[:-1]}
    paths = {path for path in paths if path[0] == 'text'} or paths  # VSRN's captioner has word embeddings too
    if not paths:
        raise ArgumentError(argument or name, f"is set, but the model has no module '{name}'")
    return min(paths)
