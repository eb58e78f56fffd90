"""The tokenizers of published models, which the package tokenizers computes."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import ClassVar, Self

import numpy as np
import tokenizers

from jitm.errors import UserError
from jitm.files import hash_json, parse_json


@dataclasses.dataclass(frozen=True, repr=False)
class Pieces:
    """The pieces of a published model, with the interface of `Vocabulary`.

    Attributes:
      definition: One text, the JSON of the package tokenizers, with the maximum number of ids if there is one.
    """

    definition: tuple[str]

    NAME: ClassVar[str]  # in messages
    UNKNOWN: ClassVar[str] = '<unk>'
    OMITTED: ClassVar[tuple[str, ...]]  # pieces that are not text

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to ids.

        Args:
          caption: A caption, not preprocessed; names of special pieces in it are ordinary text.

        Returns:
          int32 [L]: the ids of its pieces between those of the start, if there is one, and the end.
        """
        return np.array(self._tokenizer.encode(caption).ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts ids to text.

        Args:
          ids: [L], each below V; padding, the start and the end are omitted.

        Returns:
          The words, joined from their pieces and separated by blanks.
        """
        kept = [int(i) for i in ids if self._tokenizer.id_to_token(int(i)) not in self.OMITTED]
        return self._tokenizer.decode(kept, skip_special_tokens=False).strip()

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
        """The id of what has no piece; -1 if everything has one."""
        number = self._tokenizer.token_to_id(self.UNKNOWN)
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
