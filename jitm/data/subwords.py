"""The tokenizers of SigLIP and SigLIP 2: subwords (Kudo and Richardson, 2018)."""

import struct
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from jitm.data.pieces import Pieces
from jitm.errors import UserError
from jitm.files import read_bytes

MAX_IDS = 64  # of a caption, as published
END = 1  # the id of the end in all vocabularies of SigLIP
UNIGRAM, UNKNOWN = 1, 2  # the kinds of a model and of a piece in a `.model` file

_SPACE = '\u2581'
_NOT_READ = [  # what transformers removes from captions for SigLIP: capitals, ASCII punctuation, repeated blanks
    normalizers.Lowercase(),
    normalizers.Replace(Regex(r'[!-/:-@\[-`{-~]'), ''),
    normalizers.Replace(Regex(r'\s+'), ' '),
    normalizers.Strip(),
]


class Subwords(Pieces):
    """The pieces of a SigLIP, of which the last of a caption is the end; there is no mask."""

    NAME = 'pieces of SigLIP'
    OMITTED = '<pad>', '</s>', '<eos>'

    @classmethod
    def load(cls, path: str, max_length: int = MAX_IDS) -> 'Subwords':
        """Reads a published tokenizer.

        Captions are lower-cased as in the training of both; SigLIP's, not SigLIP 2's, lose ASCII punctuation.

        Args:
          path: A `.model` of the package sentencepiece (SigLIP), or a `tokenizer.json`.
          max_length: The maximum number of ids of a caption; longer ones are cut.

        Returns:
          The pieces.

        Raises:
          UserError: If the file cannot be read, or is another tokenizer.
        """
        try:
            content = read_bytes(path)
            is_json = path.endswith('.json')
            tokenizer = tokenizers.Tokenizer.from_str(content.decode()) if is_json else _from_model(content)
        except OSError as error:
            raise UserError(f'{path} cannot be read ({error.strerror}): give the tokenizer of a SigLIP') from error
        except Exception as error:  # tokenizers raises no narrower one
            raise UserError(f'{path} is not the tokenizer of a SigLIP ({error}): give another file') from error
        end = tokenizer.id_to_token(END)
        if end not in ('</s>', '<eos>'):
            raise UserError(f"{path} has '{end}' as piece {END}, not the end: give the tokenizer of a SigLIP")
        first = _NOT_READ if isinstance(tokenizer.model, models.Unigram) else _NOT_READ[:1]
        tokenizer.normalizer = normalizers.Sequence([*first, *filter(None, [tokenizer.normalizer])])
        tokenizer.post_processor = processors.TemplateProcessing(f'$A {end}', special_tokens=[(end, END)])
        tokenizer.enable_truncation(max_length)
        tokenizer.no_padding()
        return cls((tokenizer.to_str(),))

    @property
    def pad(self) -> int:
        """The id with which the model was trained as padding: the end for SigLIP, `<pad>` for SigLIP 2."""
        return END if isinstance(self._tokenizer.model, models.Unigram) else 0


def _from_model(content: bytes) -> tokenizers.Tokenizer:
    """Makes the tokenizer of a `.model` file, the message `ModelProto` of the package sentencepiece.

    Raises:
      ValueError, IndexError, TypeError, struct.error: if it is damaged, or of another kind than a unigram model.
    """
    pieces, unknown, kind, characters = [], 0, UNIGRAM, b''
    for number, value in _fields(content):
        fields = dict(_fields(value)) if number in (1, 2, 3) else {}
        if number == 1:  # a piece: its text, its score and its kind
            if fields.get(3) == UNKNOWN:
                unknown = len(pieces)
            pieces.append((fields[1].decode(), struct.unpack('<f', fields.get(2, bytes(4)))[0]))
        elif number == 2:  # the trainer
            kind = fields.get(3, UNIGRAM)
        elif number == 3:  # the normalizer: its compiled table of characters
            characters = fields.get(2, b'')
    if kind != UNIGRAM or not pieces:
        raise ValueError('no unigram model')
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unknown, byte_fallback=False))
    table = [normalizers.Precompiled(characters)] if characters else []
    tokenizer.normalizer = normalizers.Sequence([*table, normalizers.Replace(Regex(' {2,}'), ' '), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, 'always')
    tokenizer.decoder = decoders.Metaspace(_SPACE, 'always')
    return tokenizer


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the numbers and the values of the fields of a protocol buffer: int, or the bytes of other kinds."""
    at = 0

    def read_number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = read_number()
        if key & 7 == 0:
            yield key >> 3, read_number()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or read_number()
        if key & 7 not in (1, 2, 5) or at + size > len(message):
            raise ValueError('no protocol buffer')
        at += size
        yield key >> 3, message[at - size : at]
