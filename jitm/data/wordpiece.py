"""BERT's tokenizer and vocabulary of word pieces."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from jitm.errors import UserError
from jitm.files import parse_json, read_text, split_lines

MASK = '[MASK]'
PAD, UNK, CLS, SEP = SPECIAL_PIECES = ('[PAD]', '[UNK]', '[CLS]', '[SEP]')


@dataclasses.dataclass(frozen=True, repr=False)
class WordPiece:
    """The word pieces of a BERT, with the interface of `Vocabulary`.

    Attributes:
      words: The V distinct pieces; the id of a piece is its index. `[PAD]` is the first, the other `SPECIAL_PIECES` are
        among them, and pieces that continue a word start with `##`.
    """

    words: tuple[str, ...]

    @classmethod
    def load(cls, path: str) -> 'WordPiece':
        """Reads a published vocabulary.

        Args:
          path: A `vocab.txt`, one piece per line, or a `tokenizer.json`.

        Returns:
          The word pieces.

        Raises:
          UserError: If the file cannot be read, has duplicates, lacks a special piece, or `[PAD]` is not the first.
        """
        text = read_text(path, 'give the path of a vocab.txt')
        try:
            words = _from_json(text) if path.endswith('.json') else tuple(split_lines(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f'{path} has no word pieces of a BERT ({error}): give the path of a vocab.txt') from error
        if missing := [piece for piece in SPECIAL_PIECES if piece not in words]:
            raise UserError(f'{path} lacks {", ".join(missing)}: give the vocab.txt of a BERT')
        if words[0] != PAD:
            raise UserError(f'{path} has {PAD} at line {words.index(PAD) + 1}, but padding is 0: it must be line 1')
        if len(set(words)) < len(words):
            duplicate = next(word for n, word in enumerate(words) if word in words[:n])
            raise UserError(f"{path} has '{duplicate}' twice: give the vocab.txt of a BERT")
        return cls(words)

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to ids, lower-cased and without accents unless the pieces have capitals.

        Args:
          caption: A caption, not preprocessed; names of special pieces in it are ordinary text.

        Returns:
          int32 [L]: `[CLS]`, the longest known pieces of each word, `[UNK]` for a word that has none, `[SEP]`.
        """
        return np.array(self._tokenizer.encode(caption).ids, np.int32)

    def unknown_words(self, caption: str) -> list[str]:
        """Returns the words of a caption that have no pieces, each once."""
        pieces = self._tokenizer.encode(caption)
        unknown = (span for number, span in zip(pieces.ids, pieces.offsets, strict=True) if number == self.unknown)
        return list(dict.fromkeys(caption[start:stop] for start, stop in unknown))

    def offsets(self, caption: str) -> np.ndarray:
        """Returns (start, stop) of each piece of `encode` in characters, 0, 0 for special tokens: int32 [L, 2]."""
        return np.array(self._tokenizer.encode(caption).offsets, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts ids to text.

        Args:
          ids: [L], each below V; `[PAD]`, `[CLS]` and `[SEP]` are omitted.

        Returns:
          The words, joined from their pieces and separated by blanks.
        """
        words = (self.words[i] for i in ids)
        return ' '.join(word for word in words if word not in (PAD, CLS, SEP)).replace(' ##', '')

    def with_mask(self) -> 'WordPiece':
        """Returns the word pieces, which must contain `[MASK]`.

        Raises:
          UserError: If they do not.
        """
        if MASK not in self._ids:
            raise UserError(
                f'the word pieces lack {MASK}, which masking and changing words require: give the vocab.txt of a BERT'
            )
        return self

    @property
    def mask(self) -> int:
        """The id of `[MASK]`; the pieces must contain it."""
        return self._ids[MASK]

    @property
    def unknown(self) -> int:
        """The id of `[UNK]`."""
        return self._ids[UNK]

    @property
    def first_word(self) -> int:
        """The smallest id of a piece of text: that of `!` in BERT's vocabularies, else after special pieces."""
        special = [self._ids[piece] for piece in (*SPECIAL_PIECES, MASK) if piece in self._ids]
        return self._ids.get('!', 1 + max(special))

    @functools.cached_property
    def continues(self) -> np.ndarray:
        """bool [V], whether a piece continues the previous word."""
        return np.array([word.startswith('##') for word in self.words])

    def __len__(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        """SHA-256 of the pieces in order, as hex: equal hashes mean equal ids."""
        return hashlib.sha256(json.dumps(['wordpiece', *self.words]).encode()).hexdigest()

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @functools.cached_property
    def cased(self) -> bool:
        """Whether the pieces distinguish upper and lower case, as those of BERT's cased models do."""
        return any(word != word.lower() for word in self.words if not re.fullmatch(r'\[\w+\]', word))

    @functools.cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        """A tokenizer without added tokens, so that the names of special pieces in a caption are text."""
        tokenizer = tokenizers.Tokenizer(models.WordPiece(self._ids, unk_token=UNK))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not self.cased)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.BertProcessing(*((piece, self._ids[piece]) for piece in (SEP, CLS)))
        return tokenizer


def _from_json(text: str) -> tuple[str, ...]:
    content = parse_json(text)
    ids, lowercase = content['model']['vocab'], (content.get('normalizer') or {}).get('lowercase')
    words = tuple(sorted(ids, key=ids.get))
    if [ids[word] for word in words] != list(range(len(words))):
        raise ValueError('its ids have gaps')
    if lowercase is WordPiece(words).cased:
        raise ValueError(f'its pieces are {"" if lowercase else "not "}of cased text, but lowercase is {lowercase}')
    return words
