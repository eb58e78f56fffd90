"""Reads the vocabularies that VSE++ and VSRN published as pickles, without running anything in them."""

import json
import os
import types
from typing import IO

from jitm.data.pickles import BoundedUnpickler
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.files import open_file

CLASSES = (('__main__', 'Vocabulary'), ('vocab', 'Vocabulary'))  # module and name, as the authors' scripts have them
FIELDS = ('word2idx', 'idx2word', 'idx')


class _Unpickler(BoundedUnpickler):
    """Knows the class of vocabularies only, of which it keeps the attributes."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        super().__init__(file, os.path.getsize(path))
        self.path = path
        # A new class for each file, which could change it.
        self.stand_in = type('Vocabulary', (types.SimpleNamespace,), {})

    def find_class(self, module: str, name: str) -> type:
        """Returns what stands for a global of the pickle."""
        if (module, name) not in CLASSES:
            raise UserError(
                f"{self.path} refers to '{module}.{name}', which no vocabulary needs and which is not run: give a "
                'vocabulary'
            )
        return self.stand_in


def load(path: str) -> Vocabulary:
    """Reads a vocabulary.

    Args:
      path: A pickle of an object with `word2idx`, `idx2word` and `idx`, written by any version of Python.

    Returns:
      The vocabulary, see `Vocabulary.from_json`.

    Raises:
      UserError: If the file is missing or damaged, or has anything else.
    """
    try:
        with open_file(path) as file:
            fields = vars(_Unpickler(file, path).load())
        text = json.dumps({name: fields[name] for name in FIELDS})
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of a vocabulary') from error
    except UserError:
        raise
    except Exception as error:  # Unpickling a damaged file can raise anything.
        detail = f'{type(error).__name__}: {error}'.removesuffix(': ')
        raise UserError(f'{path} is not the pickle of a vocabulary ({detail}): download it again') from error
    return Vocabulary.from_json(text, path)
