"""Reading and storing of vocabularies of any kind: words, word pieces, byte pairs or subwords."""

import dataclasses
from collections.abc import Mapping, Sequence

from jitm.data import vocabulary_pickles
from jitm.data.bpe import BPE
from jitm.data.subwords import Subwords, has_subwords
from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece

Tokenizer = Vocabulary | WordPiece | BPE | Subwords
KINDS = {'words': Vocabulary, 'word pieces': WordPiece, 'byte pairs': BPE, 'subwords': Subwords}
FILES = ('vocabulary.json', 'vocab.txt')  # that `to_file` names, of words and of word pieces
BYTE_PAIRS = ('.gz', 'merges.txt', 'tokenizer.json')  # ends of the names of their files


def load_vocabulary(path: str) -> Tokenizer:
    """Reads a vocabulary of words from a JSON file or a `.pkl`, the word pieces of a BERT from a `.txt`, or others.

    CLIP's byte pairs are read from `merges.txt`, `tokenizer.json`, or a file that ends in `.gz`, SigLIP's pieces from a
    `.model` or `tokenizer.json`.

    Raises:
      UserError: If the file is missing or damaged.
    """
    if path.endswith(('.model', 'tokenizer.json')) and has_subwords(path):
        return Subwords.load(path)
    if path.endswith(BYTE_PAIRS):
        return BPE.load(path)
    if path.endswith('.pkl'):
        return vocabulary_pickles.load(path)
    return WordPiece.load(path) if path.endswith('.txt') else Vocabulary.load(path)


def kind_of(vocabulary: Tokenizer) -> str:
    """Returns the kind of a vocabulary, a key of `KINDS`."""
    return next(name for name, kind in KINDS.items() if isinstance(vocabulary, kind))


def to_file(vocabulary: Vocabulary | WordPiece) -> tuple[str, str]:
    """Returns the name and the text of a file that `load_vocabulary` reads."""
    if isinstance(vocabulary, Vocabulary):
        return FILES[0], vocabulary.to_json()
    return FILES[1], '\n'.join(vocabulary.words) + '\n'


def describe_vocabulary(vocabulary: Tokenizer) -> dict[str, str | list[str]]:
    """Returns a JSON value from which `restore_vocabulary` makes the same vocabulary."""
    return {'kind': kind_of(vocabulary)} | {name: list(v) for name, v in dataclasses.asdict(vocabulary).items()}


def restore_vocabulary(description: Mapping[str, str | Sequence[str]]) -> Tokenizer:
    """Makes the vocabulary of a description, see `describe_vocabulary`.

    Raises:
      KeyError, TypeError, ValueError: If it is of an unknown kind, or has something else than lists of strings.
    """
    if any(type(value) is not str for values in description.values() for value in values):
        raise ValueError('a vocabulary has something else than strings')
    fields = {name: tuple(values) for name, values in description.items() if name != 'kind'}
    return KINDS[description['kind']](**fields)
