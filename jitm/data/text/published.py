"""The tokenizers of published folders of text encoders: those of a BERT, and others as they are."""

import functools
from pathlib import Path
from typing import Any

import tokenizers

from jitm.data.text.pieces import Pieces
from jitm.data.text.wordpiece import SPECIAL_PIECES, WordPiece
from jitm.errors import UserError
from jitm.files import hash_json, parse_json, read_bytes

OF_A_BERT = 'normalizer', 'pre_tokenizer', 'model'  # what a tokenizer shares with that of `WordPiece.of`


class PublishedPieces(Pieces):
    """The pieces of a published tokenizer of any kind, such as those of MPNet, RoBERTa and XLM-R."""

    NAME = 'pieces'
    OMITTED = ('<s>', '<pad>', '</s>', *SPECIAL_PIECES[:1], *SPECIAL_PIECES[2:])

    @functools.cached_property
    def unknown(self) -> int:
        """The id of text without a piece; -1 if there is no such text."""
        model = parse_json(self.definition[0])['model']
        if 'unk_id' in model:
            return -1 if model['unk_id'] is None else model['unk_id']
        number = self._tokenizer.token_to_id(model.get('unk_token') or '')
        return -1 if number is None else number

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the whole tokenizer, as hex: equal hashes mean equal ids."""
        return hash_json([self.NAME, parse_json(self.definition[0])])


def load_folder(folder: str, max_length: int | None = None) -> WordPiece | PublishedPieces:
    """Reads the tokenizer of a folder of Hugging Face.

    Truncation and padding that a `tokenizer.json` states are not read.

    Args:
      folder: The folder, with one of `READERS`.
      max_length: The maximum number of ids of a caption; longer ones are cut. None for any.

    Returns:
      The tokenizer, as `WordPiece` if it is that of a BERT.

    Raises:
      UserError: If it has no tokenizer, or one that cannot be read, or that adds no special pieces.
    """
    file = next((Path(folder, name) for name in READERS if Path(folder, name).is_file()), None)
    if file is None:
        raise UserError(f'{folder} has no {" or ".join(READERS)}: add the tokenizer that it was published with')
    try:
        tokenizer = READERS[file.name](file, _read_config(file.with_name('tokenizer_config.json')))
    except OSError as error:
        raise UserError(f'{error.filename} cannot be read ({error.strerror}): download it again') from error
    except Exception as error:  # tokenizers raises no narrower one
        raise UserError(f'{file} is no tokenizer ({error}): download it again') from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if len(tokenizer.encode('').ids) != 2:  # the start and the end
        raise UserError(f'{file} adds no start and end to a text: give the tokenizer of a BERT')
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return WordPiece((tokenizer.to_str(),)) if _is_of_a_bert(tokenizer) else PublishedPieces((tokenizer.to_str(),))


def _is_of_a_bert(tokenizer: tokenizers.Tokenizer) -> bool:
    """Returns whether a tokenizer is the one that `WordPiece.of` makes of its pieces."""
    words = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    if words[0] != SPECIAL_PIECES[0] or not {*SPECIAL_PIECES} <= {*words}:
        return False
    ours, theirs = (parse_json(text) for text in (*WordPiece.of(words).definition, tokenizer.to_str()))
    return all(ours[key] == theirs[key] for key in OF_A_BERT)


def _read_config(file: Path) -> dict[str, Any]:
    return dict(parse_json(read_bytes(file))) if file.is_file() else {}


def _of_json(file: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    del config  # the file has all
    return tokenizers.Tokenizer.from_str(file.read_text(encoding='utf-8'))


READERS = {'tokenizer.json': _of_json}  # file -> reads it, given the content of `tokenizer_config.json`
