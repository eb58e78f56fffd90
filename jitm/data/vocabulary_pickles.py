"""Reads the vocabularies that authors published as pickles, without running anything in them."""

import json
import os
import types
from collections.abc import Mapping
from typing import Any

from jitm.data.pickles import BoundedUnpickler
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.files import open_file

FIELDS = ('word2idx', 'idx2word', 'idx')


class _Unpickler(BoundedUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Keeps the attributes of a vocabulary, whatever the module of its class was called."""
        return types.SimpleNamespace if name in {'Vocabulary', 'Vocab'} else super().find_class(module, name)


def load(path: str) -> Vocabulary:
    """Reads a vocabulary.

    Args:
      path: A pickle of an object or a dict with `word2idx` and perhaps `idx2word` and `idx`, or of a dict {word: id},
        written by any version of Python. Words that are bytes are read as UTF-8.

    Returns:
      The vocabulary, see `Vocabulary.from_json`.

    Raises:
      UserError: If the file is missing or damaged, or has anything else.
    """
    try:
        with open_file(path) as file:
            content = _Unpickler(file, os.path.getsize(path), {}, 'utf-8').load()
        fields = vars(content) if isinstance(content, types.SimpleNamespace) else content
        if not isinstance(fields, Mapping) or not fields:
            raise ValueError(f'it has {content!r:.60}')
        if 'word2idx' in fields and 'idx2word' not in fields:
            fields = fields['word2idx']
        elif 'word2idx' in fields:
            fields = {'idx': len(fields['word2idx'])} | {name: fields[name] for name in FIELDS if name in fields}
            if isinstance(words := fields['idx2word'], list):
                fields['idx2word'] = dict(enumerate(words))
        text = json.dumps(_decoded(fields))
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of a vocabulary') from error
    except Exception as error:  # Unpickling a damaged file can raise anything.
        detail = f'{type(error).__name__}: {error}'.removesuffix(': ')
        raise UserError(f'{path} is not the pickle of a vocabulary ({detail}): give another file') from error
    return Vocabulary.from_json(text, path)


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_decoded(key): _decoded(word) for key, word in value.items()}
    return value.decode() if isinstance(value, bytes) else value
