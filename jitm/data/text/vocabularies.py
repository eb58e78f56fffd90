"""Reading and storing of vocabularies of any kind: words, word pieces, byte pairs or subwords."""

import contextlib
import dataclasses
import itertools
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.text.blip_pieces import BLIP_PIECES, of_blip
from jitm.data.text.pieces import BPE, Subwords
from jitm.data.text.published import PublishedPieces, load_folder
from jitm.data.text.word_level import Tokens, Vocabulary, join
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.files import open_file, parse_json, read_bytes, read_text
from jitm.files.packages import located
from jitm.files.pickles import BoundedUnpickler

Tokenizer = Vocabulary | WordPiece | BPE | Subwords | PublishedPieces
KINDS = {
    'words': Vocabulary,
    'word pieces': WordPiece,
    'byte pairs': BPE,
    'subwords': Subwords,
    'pieces': PublishedPieces,
}
FILES = ('vocabulary.json', 'vocab.txt')  # beside weights: words, word pieces


def load_vocabulary(path: str, max_length: int | None = None) -> Tokenizer:
    """Reads a vocabulary of words from a JSON file or a pickle, the word pieces of a BERT from a `.txt`, or others.

    CLIP's byte pairs are read from `merges.txt` or a `.gz` file, SigLIP's pieces from a `.model`; all three
    kinds also from `tokenizer.json`. A folder has the tokenizer of a published text encoder.

    Args:
      path: The path of the file or folder, or a name, see `jitm.files.packages.located`.
      max_length: The number of ids to which captions are cut, but not those of words or of a BERT's file; None for the
        published one of a CLIP or SigLIP, and for any number otherwise.

    Raises:
      UserError: If the file is missing or damaged.
    """
    path = located(path)
    if os.path.isdir(path):
        return load_folder(path, max_length)
    content = b''
    model = {}  # an error below says why a file cannot be read, or has no model
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = read_bytes(path)
        model = dict(parse_json(content)['model']) if path.endswith('tokenizer.json') else {}
    if path.endswith('.model') or model.get('type') == 'Unigram' or model.get('byte_fallback') is True:
        return Subwords.load(path, max_length)
    if path.endswith(('.gz', 'merges.txt', 'tokenizer.json')) and model.get('type') != 'WordPiece':
        return BPE.load(path, max_length)
    if path.endswith(('.pkl', '.pickle', '.p')) or content.startswith(b'\x80'):  # a pickle of protocol 2 or later
        return _read_pickle(path)
    if path.endswith(('.txt', 'tokenizer.json')):
        pieces = WordPiece.load(path)
        return of_blip(pieces.words) if pieces.words[-2:] == BLIP_PIECES else pieces
    return Vocabulary.from_json(read_text(path, 'give the path of a vocabulary'), path)


class _Unpickler(BoundedUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Keeps the attributes of a vocabulary of any class."""
        return types.SimpleNamespace if name in {'Vocabulary', 'Vocab'} else super().find_class(module, name)


def _read_pickle(path: str) -> Vocabulary:
    """Reads a vocabulary that authors published as a pickle, without running anything in it.

    Args:
      path: A pickle of an object or a dict with `word2idx` and perhaps `idx2word` and `idx`, or of a dict {word: id},
        written by any version of Python. Words that are bytes are read as UTF-8.

    Raises:
      UserError: If the file is missing or damaged, or has anything else.
    """
    try:
        with open_file(path) as file:
            content = _Unpickler(file, os.path.getsize(path), {}, 'utf-8').load()
        fields = _decoded(vars(content) if isinstance(content, types.SimpleNamespace) else content)
        if not isinstance(fields, Mapping) or not fields:
            raise ValueError(f'it has {content!r:.60}')
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of a vocabulary') from error
    except Exception as error:  # Unpickling a damaged file can raise anything.
        detail = f'{type(error).__name__}: {error}'.removesuffix(': ')
        raise UserError(f'{path} is not the pickle of a vocabulary ({detail}): give another file') from error
    return Vocabulary.from_fields(fields, path)


def _decoded(value: Any) -> Any:
    """Returns the contents of a pickle with text in place of bytes."""
    if isinstance(value, Mapping):
        return {_decoded(key): _decoded(word) for key, word in value.items()}
    if isinstance(value, list):
        return [*map(_decoded, value)]
    return value.decode() if isinstance(value, bytes) else value


def kind_of(vocabulary: Tokenizer) -> str:
    """Returns the kind of a vocabulary, a key of `KINDS`."""
    return next(name for name, kind in KINDS.items() if isinstance(vocabulary, kind))


def describe_vocabulary(vocabulary: Tokenizer) -> dict[str, str | list[str]]:
    """Returns a JSON value from which `restore_vocabulary` makes the same vocabulary."""
    return {
        'kind': kind_of(vocabulary),
        **{name: list(texts) for name, texts in dataclasses.asdict(vocabulary).items()},
    }


def restore_vocabulary(description: Mapping[str, str | Sequence[str]]) -> Tokenizer:
    """Makes the vocabulary of a description, see `describe_vocabulary`.

    Raises:
      KeyError, TypeError, ValueError: If its kind is unknown, or its values are not lists of strings.
    """
    fields = {name: tuple(texts) for name, texts in description.items() if name != 'kind'}
    if {*map(type, itertools.chain.from_iterable(fields.values()))} - {str}:
        raise ValueError('a vocabulary has something else than strings')
    vocabulary = KINDS[description['kind']](**fields)
    len(vocabulary)  # a ValueError if it is no tokenizer
    return vocabulary


def tokenize_split(captions: Sequence[str], vocabulary: Tokenizer, tags: Sequence[str] | None = None) -> Tokens:
    """Encodes the captions of a split, and the object tags of its images if it has any."""
    tag_tokens = None if tags is None else tokenize_tags(tags, vocabulary)
    return dataclasses.replace(join(map(vocabulary.encode, captions)), tags=tag_tokens)


def tokenize_tags(tags: Sequence[str], vocabulary: Tokenizer) -> Tokens:
    """Encodes the object tags of images, see `Images.tags`; an image without tags has no ids."""
    return join(vocabulary.encode(words)[1:] if words else np.zeros(0, np.int32) for words in tags)
