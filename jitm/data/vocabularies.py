"""Reading and storing of vocabularies of either kind: words or word pieces."""

from collections.abc import Mapping, Sequence

from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece

KINDS = {'words': Vocabulary, 'word pieces': WordPiece}


def load_vocabulary(path: str) -> Vocabulary | WordPiece:
    """Reads the word pieces of a BERT from a `.txt`, or a vocabulary of words from a JSON file.

    Raises:
      UserError: if the file is missing or damaged.
    """
    return WordPiece.load(path) if path.endswith('.txt') else Vocabulary.load(path)


def kind_of(vocabulary: Vocabulary | WordPiece) -> str:
    """Returns the kind of a vocabulary, a key of `KINDS`."""
    return next(name for name, kind in KINDS.items() if isinstance(vocabulary, kind))


def describe_vocabulary(vocabulary: Vocabulary | WordPiece) -> dict[str, str | list[str]]:
    """Returns a JSON value from which `restore_vocabulary` makes the same vocabulary."""
    return {'kind': kind_of(vocabulary), 'words': list(vocabulary.words)}


def restore_vocabulary(description: Mapping[str, str | Sequence[str]]) -> Vocabulary | WordPiece:
    """Makes the vocabulary of a description, see `describe_vocabulary`."""
    return KINDS[description['kind']](tuple(description['words']))
