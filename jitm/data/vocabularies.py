"""Which of the two kinds of vocabulary a file or a checkpoint holds."""

from collections.abc import Mapping, Sequence

from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece

KINDS = {'words': Vocabulary, 'word pieces': WordPiece}


def load_vocabulary(path: str) -> Vocabulary | WordPiece:
    """Reads the word pieces of a BERT from a `.txt`, or a vocabulary of words from a JSON file.

    Raises:
      UserError: the file is missing or damaged.
    """
    return WordPiece.load(path) if path.endswith('.txt') else Vocabulary.load(path)


def kind_of(vocabulary: Vocabulary | WordPiece) -> str:
    """Names the kind of a vocabulary, as in `KINDS`."""
    return next(name for name, kind in KINDS.items() if isinstance(vocabulary, kind))


def describe_vocabulary(vocabulary: Vocabulary | WordPiece) -> dict[str, str | list[str]]:
    """JSON from which `restore_vocabulary` makes the same vocabulary."""
    return {'kind': kind_of(vocabulary), 'words': list(vocabulary.words)}


def restore_vocabulary(description: Mapping[str, str | Sequence[str]]) -> Vocabulary | WordPiece:
    """Makes the vocabulary that was described."""
    return KINDS[description['kind']](tuple(description['words']))
