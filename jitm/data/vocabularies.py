"""Reading and storing of vocabularies of any kind: words, word pieces, byte pairs or subwords."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jitm.data import vocabulary_pickles
from jitm.data.bpe import BPE
from jitm.data.subwords import Subwords
from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.files import parse_json, read_bytes

Tokenizer = Vocabulary | WordPiece | BPE | Subwords
KINDS = {'words': Vocabulary, 'word pieces': WordPiece, 'byte pairs': BPE, 'subwords': Subwords}
FILES = ('vocabulary.json', 'vocab.txt')  # that `to_file` names, of words and of word pieces
BYTE_PAIRS = ('.gz', 'merges.txt', 'tokenizer.json')  # ends of the names of their files


def load_vocabulary(path: str, max_length: int | None = None) -> Tokenizer:
    """Reads a vocabulary of words from a JSON file or a pickle, the word pieces of a BERT from a `.txt`, or others.

    CLIP's byte pairs are read from `merges.txt` or a file that ends in `.gz`, SigLIP's pieces from a `.model`, those of
    all three from `tokenizer.json`.

    Args:
      path: The path of the file.
      max_length: The number of ids to which a CLIP or SigLIP cuts captions; None for the published one.

    Raises:
      UserError: If the file is missing or damaged.
    """
    limit = {} if max_length is None else {'max_length': max_length}
    model = _model_in(path) if path.endswith('tokenizer.json') else {}
    if path.endswith('.model') or model.get('type') == 'Unigram' or model.get('byte_fallback') is True:
        return Subwords.load(path, **limit)
    if path.endswith(BYTE_PAIRS) and model.get('type') != 'WordPiece':
        return BPE.load(path, **limit)
    if path.endswith(('.pkl', '.pickle', '.p')) or _is_pickle(path):
        return vocabulary_pickles.load(path)
    return WordPiece.load(path) if path.endswith(('.txt', 'tokenizer.json')) else Vocabulary.load(path)


def _is_pickle(path: str) -> bool:
    """Returns whether a file starts as a pickle of protocol 2 or later."""
    try:
        return read_bytes(path)[:1] == b'\x80'
    except OSError:
        return False


def _model_in(path: str) -> dict[str, Any]:
    """Returns the model in a `tokenizer.json`; nothing if there is none, of which a reader tells what is wrong."""
    try:
        return dict(parse_json(read_bytes(path))['model'])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


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
    return {
        'kind': kind_of(vocabulary),
        **{name: list(texts) for name, texts in dataclasses.asdict(vocabulary).items()},
    }


def restore_vocabulary(description: Mapping[str, str | Sequence[str]]) -> Tokenizer:
    """Makes the vocabulary of a description, see `describe_vocabulary`.

    Raises:
      KeyError, TypeError, ValueError: If it is of an unknown kind, or has something else than lists of strings.
    """
    fields = {name: tuple(texts) for name, texts in description.items() if name != 'kind'}
    if any(type(text) is not str for texts in fields.values() for text in texts):
        raise ValueError('a vocabulary has something else than strings')
    vocabulary = KINDS[description['kind']](**fields)
    len(vocabulary)  # a ValueError if it is no tokenizer
    return vocabulary
