"""The tokenizers of CLIP and SigLIP, on top of the package tokenizers."""

import dataclasses
import functools
import gzip
import html
import os
import struct
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from jitm.errors import UserError
from jitm.files import hash_json, parse_json, read_bytes, split_lines

START = '<|startoftext|>'
END = '<|endoftext|>'
MAX_IDS = 77  # the length of captions of CLIP, as published
MAX_MERGES = 48894  # the first lines of the published file, which has more

_WORD_END = '</w>'
_WORDS = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
# Full-width and half-width forms, and ligatures, which the published tokenizer writes as the package ftfy does.
_WIDE_FORMS = (0x3000, *range(0xFF01, 0xFFF0), *range(0xFB00, 0xFB07), *range(0x1C4, 0x1CD), *range(0x1F1, 0x1F4))
_WIDE = {code: unicodedata.normalize('NFKC', chr(code)) for code in (0x132, 0x133, 0x149, *_WIDE_FORMS)}
_WIDE[0xFB05] = '\u017ft'
_QUOTES = {ord(quote): "'" for quote in '\u02bc\u2018\u2019\u201a\u201b'}
_QUOTES |= {ord(quote): '"' for quote in '\u201c\u201d\u201e\u201f'}
# The 256 characters that represent bytes in published order, and again as the ends of words.
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_BYTE_PIECES = [*_BYTES, *(byte + _WORD_END for byte in _BYTES)]

UNIGRAM = 1  # the kind of a model in a `.model` file
UNKNOWN = 2  # the kind of a piece in it

_SPACE = '\u2581'
_NOT_READ = [  # transformers removes for SigLIP: capitals, ASCII punctuation, repeated blanks
    normalizers.Lowercase(),
    normalizers.Replace(Regex(r'[!-/:-@\[-`{-~]'), ''),
    normalizers.Replace(Regex(r'\s+'), ' '),
    normalizers.Strip(),
]


@dataclasses.dataclass(frozen=True, repr=False)
class Pieces:
    """The pieces of a published model, with the interface of `Vocabulary`.

    Attributes:
      definition: One text, the JSON of the package tokenizers, with the maximum number of ids if there is one.
    """

    definition: tuple[str]

    NAME: ClassVar[str]  # in messages
    FILE: ClassVar[str]  # the published file, in messages
    LENGTH: ClassVar[int | None] = None  # the published maximum number of ids
    OMITTED: ClassVar[tuple[str, ...]]  # pieces that are not text

    @classmethod
    def load(cls, path: str, max_length: int | None = None) -> Self:
        """Reads a published tokenizer, see `parse` for its files.

        Args:
          path: The path of the file.
          max_length: The maximum number of ids of a caption; longer ones are cut. None for the published number.

        Raises:
          UserError: If the file cannot be read, or is another one.
        """
        try:
            content = read_bytes(path)
        except OSError as error:
            raise UserError(f'{path} cannot be read ({error.strerror}): give the {cls.FILE}') from error
        try:
            return cls.parse(content, os.path.splitext(path)[1], max_length or cls.LENGTH)
        except Exception as error:  # tokenizers raises no narrower one
            raise UserError(f'{path} is not the {cls.FILE} ({error}): give another file') from error

    @classmethod
    def parse(cls, content: bytes, suffix: str, max_length: int | None) -> Self:
        """Makes the tokenizer of a file with a suffix; any error means that it is another one."""
        raise NotImplementedError

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to ids.

        Args:
          caption: A caption, not preprocessed; names of special pieces in it are ordinary text.

        Returns:
          int32 [L]: the start, if there is one, the ids of its pieces, and the end.
        """
        return np.array(self._tokenizer.encode(caption).ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts ids to text.

        Args:
          ids: [L], each below V; padding, the start and the end are omitted.

        Returns:
          The words, joined from their pieces and separated by blanks.
        """
        words = [int(i) for i in ids if self._tokenizer.id_to_token(int(i)) not in self.OMITTED]
        return self._tokenizer.decode(words, skip_special_tokens=False).strip()

    def unknown_words(self, caption: str) -> list[str]:
        """Returns the parts of a caption that have no pieces, each once."""
        pieces = self._tokenizer.encode(caption)
        unknown = (span for number, span in zip(pieces.ids, pieces.offsets, strict=True) if number == self.unknown)
        return list(dict.fromkeys(caption[start:stop].strip() for start, stop in unknown))

    def with_mask(self) -> Self:
        """Raises a UserError, since there is no mask."""
        raise UserError(
            f'the {self.NAME} have no mask, which masking and changing words require: leave both out, or give '
            'another vocabulary.path'
        )

    @functools.cached_property
    def unknown(self) -> int:
        """The id of text without a piece; -1 if there is no such text."""
        model = parse_json(self.definition[0])['model']
        number = model.get('unk_id', self._tokenizer.token_to_id(model.get('unk_token') or ''))
        return -1 if number is None else number

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """The V pieces; the id of a piece is its index."""
        return tuple(map(self._tokenizer.id_to_token, range(len(self))))

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the pieces and the maximum length, as hex: equal hashes mean equal ids."""
        content = parse_json(self.definition[0])
        parts = [content['model'].get(key) for key in ('vocab', 'merges')]
        return hash_json([self.NAME, *parts, content['truncation']])

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        try:
            tokenizer = tokenizers.Tokenizer.from_str(*self.definition)
        except Exception as error:  # tokenizers raises no narrower one
            raise ValueError(f'it is no tokenizer ({error})') from error
        tokenizer.encode_special_tokens = True
        return tokenizer


class BPE(Pieces):
    """The byte pairs of a CLIP (Radford et al., 2021, section 2.4): every byte is known, and there is no mask."""

    NAME = 'byte pairs of CLIP'
    FILE = 'merges.txt or tokenizer.json of a CLIP'
    LENGTH = MAX_IDS
    OMITTED = START, END

    @classmethod
    def of(cls, merges: Sequence[str], max_length: int = MAX_IDS) -> 'BPE':
        """Makes a tokenizer.

        Args:
          merges: The merges, two pieces each, separated by a blank, in the order in which they are joined.
          max_length: The maximum number of ids of a caption; longer ones are cut and keep the end.
        """
        words = *_BYTE_PIECES, *(merge.replace(' ', '') for merge in merges), START, END
        ids = {word: number for number, word in enumerate(words)}
        pairs = [tuple(merge.split(' ')) for merge in merges]
        tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs, end_of_word_suffix=_WORD_END))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(_WORDS, 'removed', invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        special = [(piece, ids[piece]) for piece in (START, END)]
        tokenizer.post_processor = processors.TemplateProcessing(f'{START} $A {END}', special_tokens=special)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(_WORD_END, ' ')])
        tokenizer.enable_truncation(max_length)
        return cls((tokenizer.to_str(),))

    @classmethod
    def parse(cls, content: bytes, suffix: str, max_length: int | None) -> 'BPE':
        """Reads a `merges.txt` or a `.gz` file with a header and a merge per line, or a `tokenizer.json`."""
        if suffix == '.json':
            listed = parse_json(content)['model']['merges']
            merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in listed]
        else:
            text = gzip.decompress(content) if suffix == '.gz' else content
            merges = [*filter(None, split_lines(text.decode())[1 : 1 + MAX_MERGES])]
        if not merges:
            raise ValueError('it has no merges')
        pieces = set(_BYTE_PIECES)
        for number, merge in enumerate(merges, 1):
            parts = merge.split(' ')
            if len(parts) != 2 or not pieces.issuperset(parts) or ''.join(parts) in pieces:
                raise ValueError(f"it has '{merge}' as merge {number}")
            pieces.add(''.join(parts))
        return cls.of(merges, max_length)

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to ids.

        Args:
          caption: A caption, not preprocessed; HTML entities, curly quotes, full-width characters and ligatures are
            replaced, letters lower-cased, blanks collapsed. The published tokenizer also repairs wrongly decoded text
            and removes codes of terminals. Names of special pieces are ordinary text.

        Returns:
          int32 [L]: the start, the pieces and the end, at most `max_length` ids; the last is the end.
        """
        text = html.unescape(html.unescape(caption)).translate(_WIDE).translate(_QUOTES)
        return super().encode(unicodedata.normalize('NFC', text).lower())


class Subwords(Pieces):
    """The subwords of a SigLIP or SigLIP 2 (Kudo and Richardson, 2018); captions have an end, and there is no mask."""

    NAME = 'pieces of SigLIP'
    FILE = 'tokenizer of a SigLIP'
    LENGTH = 64
    OMITTED = '<pad>', '</s>', '<eos>'
    END = 1  # the id of the end in all vocabularies of SigLIP

    @classmethod
    def parse(cls, content: bytes, suffix: str, max_length: int | None) -> 'Subwords':
        """Reads a `.model` of the package sentencepiece (SigLIP), or a `tokenizer.json`.

        Captions are lower-cased as in the training of both; SigLIP's, not SigLIP 2's, lose ASCII punctuation.
        """
        is_json = suffix == '.json'
        tokenizer = tokenizers.Tokenizer.from_str(content.decode()) if is_json else from_model(content)
        end = tokenizer.id_to_token(cls.END)
        if end not in ('</s>', '<eos>'):
            raise ValueError(f"it has '{end}' as piece {cls.END}, not the end")
        first = _NOT_READ if isinstance(tokenizer.model, models.Unigram) else _NOT_READ[:1]
        tokenizer.normalizer = normalizers.Sequence([*first, *filter(None, [tokenizer.normalizer])])
        tokenizer.post_processor = processors.TemplateProcessing(f'$A {end}', special_tokens=[(end, cls.END)])
        tokenizer.enable_truncation(max_length)
        tokenizer.no_padding()
        return cls((tokenizer.to_str(),))

    @property
    def pad(self) -> int:
        """The id with which the model was trained as padding: the end for SigLIP, `<pad>` for SigLIP 2."""
        return self.END if isinstance(self._tokenizer.model, models.Unigram) else 0


def from_model(content: bytes) -> tokenizers.Tokenizer:
    """Makes the tokenizer of a `.model` file, the message `ModelProto` of the package sentencepiece.

    Raises:
      ValueError, KeyError, TypeError, DecodeError: If it is damaged, or of another kind than a unigram model.
    """
    from google.protobuf import empty_pb2, unknown_fields  # comes with tensorflow-datasets; slow to import

    def fields(message: bytes) -> list[tuple[int, Any]]:  # their numbers and values
        read = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))
        return [(field.field_number, field.data) for field in read]

    pieces = []
    unknown = 0
    kind = UNIGRAM
    characters = b''
    for number, value in fields(content):
        part = dict(fields(value)) if number in (1, 2, 3) else {}
        if number == 1:  # a piece: its text, its score and its kind
            if part.get(3) == UNKNOWN:
                unknown = len(pieces)
            pieces.append((part[1].decode(), struct.unpack('<f', struct.pack('<I', part.get(2, 0)))[0]))
        elif number == 2:  # the trainer
            kind = part.get(3, UNIGRAM)
        elif number == 3:  # the normalizer: its compiled table of characters
            characters = part.get(2, b'')
    if kind != UNIGRAM or not pieces:
        raise ValueError('no unigram model')
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unknown, byte_fallback=False))
    table = [normalizers.Precompiled(characters)] if characters else []
    tokenizer.normalizer = normalizers.Sequence([*table, normalizers.Replace(Regex(' {2,}'), ' '), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, 'always')
    tokenizer.decoder = decoders.Metaspace(_SPACE, 'always')
    return tokenizer
