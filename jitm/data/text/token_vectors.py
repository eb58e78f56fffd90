"""The vectors of the tokens of captions by a frozen text encoder, which `jitm encode --texts` writes.

Beside the features of a split, `{split}_txts.npy` holds the vectors of the tokens of all captions in turn, without
padding, and `{split}_lengths.npy` the number of tokens of each caption. `vocabulary.json` belongs to the encoder.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.arrays import Rows, open_npy, read_integers
from jitm.data.text.vocabularies import Tokenizer, restore_vocabulary
from jitm.data.text.word_level import Tokens
from jitm.errors import UserError
from jitm.files import hash_json, hash_rows, parse_json, read_bytes

VECTORS = '_txts.npy'
LENGTHS = '_lengths.npy'
VOCABULARY = 'vocabulary.json'
ENTRY = 'texts'  # the key in the manifest of a split
ENCODED_BY = 'network', 'parameters', 'vocabulary', 'dtype', 'precision', 'size', 'captions', 'origin'


@dataclasses.dataclass(frozen=True, repr=False)
class TokenVectors:
    """The vectors of the tokens of T captions.

    Attributes:
      values: float16 or float32 [sum of lengths, F], possibly memory-mapped.
      lengths: int32 [T], the number of tokens of each caption, special tokens included.
      vocabulary: The vocabulary of the tokens.
    """

    values: np.ndarray | Rows
    lengths: np.ndarray
    vocabulary: Tokenizer

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the vectors, as hex."""
        return hash_rows(self.values)

    def take(self, texts: np.ndarray) -> 'TokenVectors':
        """Returns the vectors of some captions, int [N], which are read when they are indexed."""
        starts = np.cumsum(self.lengths) - self.lengths
        rows = np.concatenate([np.arange(starts[text], starts[text] + self.lengths[text]) for text in texts])
        return dataclasses.replace(self, values=Rows(self.values, rows), lengths=self.lengths[texts])


def read(root: str, split: str, captions: Sequence[str], entry: Mapping[str, Any] | None) -> TokenVectors:
    """Opens the vectors of a split.

    Args:
      root: The folder.
      split: The name of the split.
      captions: The captions of the split, all of them.
      entry: The description of the encoder, `ENTRY` of the manifest.

    Raises:
      UserError: If a file is missing or damaged, or belongs to other captions.
    """
    path = os.path.join(root, split + VECTORS)
    again = 'write the vectors again with jitm encode --texts'
    if entry is None or not os.path.exists(path):
        raise UserError(
            f"{root} has no vectors of the tokens of '{split}', but config key 'data.token_vectors' is True: write "
            'them with jitm encode --texts, or set it to False'
        )
    values = open_npy(path)
    lengths_path = os.path.join(root, split + LENGTHS)
    lengths = read_integers(lengths_path, [(len(captions),)], (1, len(values)), 'the number of tokens of each caption')
    if values.ndim != 2 or lengths.sum() != len(values):
        problem = f'which is no vector for each of the {lengths.sum()} tokens in {lengths_path}'
        raise UserError(f'{path} has shape {values.shape}, {problem}: {again}')
    if hash_json(captions) != entry['captions']:
        raise UserError(f'{path} has other captions than {split} in {root}: {again}')
    path = os.path.join(root, VOCABULARY)
    try:
        vocabulary = restore_vocabulary(parse_json(read_bytes(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        vocabulary = None
    if vocabulary is None or vocabulary.hash != entry['vocabulary']:
        raise UserError(f'{path} is not the vocabulary of the vectors beside it: {again}')
    return TokenVectors(values, lengths, vocabulary)


def add_vectors(tokens: Tokens, vectors: TokenVectors | None, name: str) -> Tokens:
    """Returns the tokens of the split of a name with their vectors.

    Raises:
      UserError: If there are no vectors, or those of other tokens.
    """
    if vectors is None:
        raise UserError(f'{name} has no vectors of tokens: write them with jitm encode --texts')
    if not np.array_equal(tokens.lengths, vectors.lengths):
        raise UserError(f'{name} has vectors of other tokens: write them again with jitm encode --texts')
    return dataclasses.replace(tokens, vectors=vectors.values)


def check_encoders(
    trained: Mapping[str, Any] | None, stored: Mapping[str, Any] | None, name: str, trained_on: object
) -> None:
    """Raises a UserError unless two splits have vectors of tokens by one encoder, see `Split.encoded_by`.

    Args:
      trained: The encoder of the training split.
      stored: The encoder of the other split.
      name: The name of the other split.
      trained_on: The name of the training split, or the run directory, for the message.
    """
    encoders = [(encoded_by or {}).get(ENTRY, {}) for encoded_by in (trained, stored)]
    if any(encoders[0].get(key) != encoders[1].get(key) for key in ('network', 'parameters', 'vocabulary')):
        raise UserError(
            f'{name} has vectors of tokens by another text encoder than {trained_on}: write them with jitm encode '
            '--texts from the same run'
        )
