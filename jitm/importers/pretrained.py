"""Replaces initial parameters of a model by published weights."""

import collections
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence

import chex
import numpy as np
from flax import linen as nn
from flax import traverse_util

from jitm.config.section import Section
from jitm.errors import ArgumentError, UserError
from jitm.files import open_file
from jitm.importers.bert_weights import load_bert
from jitm.importers.cnn_weights import load_network
from jitm.importers.joint_checkpoints import load_oscar, load_uniter
from jitm.importers.text_folders import load_dense
from jitm.layers.transformer import BERTSize

Replacements = dict[tuple[str, ...], np.ndarray]
Variables = Mapping[str, chex.ArrayTree]


def load_pretrained(
    variables: Variables,
    words: Sequence[str],
    model: nn.Module,
    *,
    bert: str,
    image: str,
    uniter: str,
    oscar: str,
    word_vectors: str,
    dense: str = '',
) -> dict[str, Replacements]:
    """Reads the published weights that a config names in `initialize`.

    Args:
      variables: 'params' and 'batch_stats' of a model; only shapes are read.
      words: The V words of its vocabulary.
      model: The model.
      bert: Path of weights for the module `bert`, see `load_bert`; '' for none.
      image: Path or package of weights for the module `network`, see `load_network`; '' for none.
      uniter: Path of weights for a whole UNITER, see `load_uniter`; '' for none.
      oscar: Path of weights for an OSCAR, see `load_oscar`; '' for none.
      word_vectors: Path of a text file for the module `embedding`, see `load_word_vectors`; '' for none.
      dense: Path of weights for the module `dense`, see `load_dense`; '' for none. `named_folders.complete` sets it.

    Returns:
      'params' and 'batch_stats' -> path of a variable -> its values, NaN where the file has none.

    Raises:
      UserError: If a file cannot be read or has other shapes.
      ArgumentError: If the model has no such module.
    """
    flat = {part: traverse_util.flatten_dict(tree) for part, tree in variables.items()}
    params = flat['params']
    loaded = {part: {} for part in flat}

    def load(root: tuple[str, ...], read: Callable[[Variables], Variables]) -> None:
        """Reads the variables of the module at a path."""
        below = {}
        for part, leaves in flat.items():
            inside = {path[len(root) :]: leaf for path, leaf in leaves.items() if path[: len(root)] == root}
            below[part] = traverse_util.unflatten_dict(inside)
        for part, tree in read(below).items():
            loaded[part] |= {root + path: leaf for path, leaf in traverse_util.flatten_dict(tree).items()}

    if bert:
        size = getattr(getattr(model, 'text', None), 'size', None)
        size = size if isinstance(size, BERTSize) else None
        load(_module(params, 'bert', 'bert'), lambda trees: {'params': load_bert(bert, trees['params'], size)})
    if dense:
        load(_module(params, 'dense', 'dense'), lambda trees: {'params': load_dense(dense, trees['params'])})
    if image:
        load(_module(params, 'network', 'image'), lambda trees: load_network(image, **trees))
    if uniter:
        _module(params, 'regions', 'uniter')
        load((), lambda trees: {'params': load_uniter(uniter, trees['params'])})
    if oscar:
        _module(params, 'region_features', 'oscar')
        load((), lambda trees: {'params': load_oscar(oscar, trees['params'])})
    if word_vectors:
        path = (*_module(params, 'embedding', 'word_vectors'), 'embedding')
        vectors = load_word_vectors(word_vectors, words, params[path].shape[1])
        count = len(words) - np.isnan(vectors).any(axis=1).sum()
        logging.warning('%s has vectors of %d of the %d words', word_vectors, count, len(words))
        loaded['params'][path] = vectors
    return loaded


DECLARED = Section(function=load_pretrained, takes=('variables', 'words', 'model'))


def _module(flat: dict[tuple[str, ...], chex.Array], name: str, argument: str) -> tuple[str, ...]:
    """Returns the path of the module of this name, which an argument of `load_pretrained` requires."""
    paths = {path[: path.index(name) + 1] for path in flat if name in path[:-1]}
    paths = {path for path in paths if path[0] == 'text'} or paths  # VSRN's captioner has word embeddings too
    if not paths:
        raise ArgumentError(argument, f"is set, but the model has no module '{name}'")
    return min(paths)


def load_word_vectors(path: str, words: Sequence[str], dim: int) -> np.ndarray:
    """Reads the vectors of a vocabulary's words.

    A word without a vector is looked up again without `-`, `.` and `'` and up to a `/`, as in ESA.

    Args:
      path: A text file with a word and its numbers on each line, separated by blanks; a first line with the counts of
        words and numbers is skipped.
      words: V words.
      dim: D, the size of a vector.

    Returns:
      float32 [V, D], NaN in the rows of words that have no vector.

    Raises:
      UserError: If the file cannot be read, or has vectors of another size or with NaN.
    """
    places = collections.defaultdict(list)
    for n, word in enumerate(words):
        places[word].append((0, n))
        places[re.sub("[-.']", '', word).split('/')[0]].append((1, n))
    vectors = np.full((len(words), dim), np.nan, np.float32)
    priority = np.full(len(words), 2)
    try:
        with open_file(path, 'r', encoding='utf-8', errors='replace') as file, np.errstate(over='ignore'):
            first = file.readline()
            lines = file if len(first.split()) == 2 else itertools.chain([first], file)
            for number, line in enumerate(lines, 1):
                word, *values = line.rstrip().rsplit(' ', dim)
                if number == 1 and (len(values) != dim or ' ' in word):
                    size = max(len(line.split()) - 1, 0)
                    raise UserError(f'{path} has vectors of {size} numbers, but the word embeddings have {dim}')
                for rank, n in places.get(word, ()):
                    if len(values) != dim:
                        raise UserError(f"{path} has {len(values)} numbers for '{word}', not {dim}: download it again")
                    if rank < priority[n]:
                        vectors[n] = values
                        priority[n] = rank
                        if not np.isfinite(vectors[n]).all():
                            raise UserError(f"{path} has numbers for '{word}' that are not finite: download it again")
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of word vectors') from error
    except ValueError as error:
        raise UserError(f'{path} is not a text file of words and numbers ({error}): give one such as GloVe') from error
    if np.isnan(vectors).all():
        raise UserError(f'{path} has no vector for any word of the vocabulary: give word vectors of its language')
    return vectors


def replace(params: chex.ArrayTree, replacements: Replacements) -> chex.ArrayTree:
    """Returns the parameters with the loaded values; NaN keeps the initial value."""
    flat = traverse_util.flatten_dict(params)
    loaded = {path: np.where(np.isnan(values), flat[path], values) for path, values in replacements.items()}
    return traverse_util.unflatten_dict(flat | loaded)
