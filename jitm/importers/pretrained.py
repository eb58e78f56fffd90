"""Published weights in the parameters that a model starts from."""

import logging
from collections.abc import Sequence

import chex
import numpy as np
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.bert import load_bert
from jitm.importers.uniter import load_uniter
from jitm.importers.word_vectors import load_word_vectors

Replacements = dict[tuple[str, ...], np.ndarray]


def load_pretrained(
    params: chex.ArrayTree, words: Sequence[str], *, bert: str, uniter: str, word_vectors: str
) -> Replacements:
    """Reads what a config's `initialize` names.

    Args:
      params: of a model; shapes are enough.
      words: of its vocabulary, V.
      bert: weights for the module `bert`, see `load_bert`; '' for none.
      uniter: weights for a whole UNITER, see `load_uniter`; '' for none.
      word_vectors: a text file for the module `embedding`, see `load_word_vectors`; '' for none.

    Returns:
      Path of a parameter -> its values, NaN where there are none.

    Raises:
      UserError: a file cannot be read or does not fit, or the model has no such module.
    """
    flat = traverse_util.flatten_dict(params)
    replacements = {}
    if bert:
        root = _module(flat, 'bert')
        below = {path[len(root) :]: leaf for path, leaf in flat.items() if path[: len(root)] == root}
        loaded = traverse_util.flatten_dict(load_bert(bert, traverse_util.unflatten_dict(below)))
        replacements |= {root + path: leaf for path, leaf in loaded.items()}
    if uniter:
        _module(flat, 'regions', key='uniter')
        replacements |= traverse_util.flatten_dict(load_uniter(uniter, traverse_util.unflatten_dict(flat)))
    if word_vectors:
        path = (*_module(flat, 'embedding', key='word_vectors'), 'embedding')
        vectors = load_word_vectors(word_vectors, words, flat[path].shape[1])
        found = len(words) - np.isnan(vectors).any(axis=1).sum()
        logging.warning('%s has vectors of %d of the %d words', word_vectors, found, len(words))
        replacements[path] = vectors
    return replacements


def replace(params: chex.ArrayTree, replacements: Replacements) -> chex.ArrayTree:
    """Puts loaded values into drawn parameters."""
    flat = traverse_util.flatten_dict(params)
    loaded = {path: np.where(np.isnan(values), flat[path], values) for path, values in replacements.items()}
    return traverse_util.unflatten_dict(flat | loaded)


def _module(flat: dict[tuple[str, ...], chex.Array], name: str, key: str | None = None) -> tuple[str, ...]:
    """The path of the module of this name."""
    paths = {path[: path.index(name) + 1] for path in flat if name in path[:-1]}
    paths = {path for path in paths if path[0] == 'text'} or paths  # VSRN's captioner has word embeddings too
    if not paths:
        raise UserError(f"config key 'initialize.{key or name}' is set, but the model has no module '{name}'")
    return min(paths)
