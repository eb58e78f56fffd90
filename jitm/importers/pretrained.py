"""Replaces initial parameters of a model by published weights."""

import logging
from collections.abc import Sequence

import chex
import numpy as np
from flax import traverse_util

from jitm.importers.bert import load_bert
from jitm.importers.oscar import load_oscar
from jitm.importers.uniter import load_uniter
from jitm.importers.word_vectors import load_word_vectors

Replacements = dict[tuple[str, ...], np.ndarray]


def load_pretrained(
    params: chex.ArrayTree, words: Sequence[str], *, bert: str, uniter: str, oscar: str, word_vectors: str
) -> Replacements:
    """Reads the published weights that a config names in `initialize`.

    Args:
      params: of a model; only shapes are read.
      words: the V words of its vocabulary.
      bert: path of weights for the module `bert`, see `load_bert`; '' for none.
      uniter: path of weights for a whole UNITER, see `load_uniter`; '' for none.
      oscar: path of weights for an OSCAR, see `load_oscar`; '' for none.
      word_vectors: path of a text file for the module `embedding`, see `load_word_vectors`; '' for none.

    Returns:
      Path of a parameter -> its values, NaN where the file has none.

    Raises:
      UserError: if a file cannot be read or has other shapes.
      ValueError: if the model has no such module.
    """
    flat = traverse_util.flatten_dict(params)
    replacements = {}
    if bert:
        root = _module(flat, 'bert')
        below = {path[len(root) :]: leaf for path, leaf in flat.items() if path[: len(root)] == root}
        loaded = traverse_util.flatten_dict(load_bert(bert, traverse_util.unflatten_dict(below)))
        replacements |= {root + path: leaf for path, leaf in loaded.items()}
    if uniter:
        _module(flat, 'regions', argument='uniter')
        replacements |= traverse_util.flatten_dict(load_uniter(uniter, traverse_util.unflatten_dict(flat)))
    if oscar:
        _module(flat, 'region_features', argument='oscar')
        replacements |= traverse_util.flatten_dict(load_oscar(oscar, traverse_util.unflatten_dict(flat)))
    if word_vectors:
        path = (*_module(flat, 'embedding', argument='word_vectors'), 'embedding')
        vectors = load_word_vectors(word_vectors, words, flat[path].shape[1])
        found = len(words) - np.isnan(vectors).any(axis=1).sum()
        logging.warning('%s has vectors of %d of the %d words', word_vectors, found, len(words))
        replacements[path] = vectors
    return replacements


def replace(params: chex.ArrayTree, replacements: Replacements) -> chex.ArrayTree:
    """Returns the parameters with the loaded values; NaN keeps the initial value."""
    flat = traverse_util.flatten_dict(params)
    loaded = {path: np.where(np.isnan(values), flat[path], values) for path, values in replacements.items()}
    return traverse_util.unflatten_dict(flat | loaded)


def _module(flat: dict[tuple[str, ...], chex.Array], name: str, argument: str = '') -> tuple[str, ...]:
    """Returns the path of the module of this name; the argument of the caller is by default equal to the name."""
    paths = {path[: path.index(name) + 1] for path in flat if name in path[:-1]}
    paths = {path for path in paths if path[0] == 'text'} or paths  # VSRN's captioner has word embeddings too
    if not paths:
        raise ValueError(f"{argument or name} is set, but the model has no module '{name}'")
    return min(paths)
