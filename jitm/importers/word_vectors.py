"""Reads word vectors from a plain text file, such as GloVe's."""

import collections
import itertools
from collections.abc import Sequence

import numpy as np

from jitm.errors import UserError
from jitm.files import open_file


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
      UserError: if the file cannot be read, or has vectors of another size or with NaN.
    """
    wanted = collections.defaultdict(list)
    for n, word in enumerate(words):
        wanted[word].append((0, n))
        wanted[_simplify(word)].append((1, n))
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
                for rank, n in wanted.get(word, ()):
                    if len(values) != dim:
                        raise UserError(f"{path} has {len(values)} numbers for '{word}', not {dim}: download it again")
                    if rank < priority[n]:
                        vectors[n], priority[n] = values, rank
                        if not np.isfinite(vectors[n]).all():
                            raise UserError(f"{path} has numbers for '{word}' that are not finite: download it again")
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of word vectors') from error
    except ValueError as error:
        raise UserError(f'{path} is not a text file of words and numbers ({error}): give one such as GloVe') from error
    if np.isnan(vectors).all():
        raise UserError(f'{path} has no vector for any word of the vocabulary: give word vectors of its language')
    return vectors


def _simplify(word: str) -> str:
    return word.replace('-', '').replace('.', '').replace("'", '').split('/')[0]
