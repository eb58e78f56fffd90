"""BERT's tokenizer and vocabulary of word pieces."""

import collections
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jitm.data.text.pieces import Pieces
from jitm.errors import UserError
from jitm.files import parse_json, split_lines

MASK = '[MASK]'
SPECIAL_PIECES = ('[PAD]', '[UNK]', '[CLS]', '[SEP]')
PAD, UNK, CLS, SEP = SPECIAL_PIECES


class WordPiece(Pieces):
    """The word pieces of a BERT; those that continue a word start with `##`.

    A caption starts with `[CLS]` and ends with `[SEP]`, and a word without known pieces is `[UNK]`.
    """

    NAME = 'word pieces'
    FILE = 'vocab.txt of a BERT'
    OMITTED = PAD, CLS, SEP

    @classmethod
    def of(cls, words: Sequence[str]) -> 'WordPiece':
        """Makes a tokenizer, which lower-cases captions and removes accents unless the pieces have capitals.

        Args:
          words: The V distinct pieces; the id of a piece is its index. `[PAD]` is the first, and the other
            `SPECIAL_PIECES` are among them.
        """
        ids = {word: number for number, word in enumerate(words)}
        tokenizer = word_pieces(ids, lowercase=not _is_cased(words))
        tokenizer.post_processor = processors.BertProcessing((SEP, ids[SEP]), (CLS, ids[CLS]))
        return cls((tokenizer.to_str(),))

    @classmethod
    def parse(cls, content: bytes, suffix: str, max_length: int | None) -> 'WordPiece':
        """Reads a `vocab.txt`, one piece per line, or a `tokenizer.json`; captions are not cut."""
        words = _words_in(parse_json(content)) if suffix == '.json' else split_lines(content.decode('utf-8-sig'))
        absent = [piece for piece in SPECIAL_PIECES if piece not in words]
        if absent:
            raise ValueError(f'it lacks {", ".join(absent)}')
        if words[0] != PAD:
            raise ValueError(f'it has {PAD} at line {words.index(PAD) + 1}, but padding is 0: it must be line 1')
        duplicate, count = collections.Counter(words).most_common(1)[0]
        if count > 1:
            raise ValueError(f"it has '{duplicate}' twice")
        return cls.of(words)

    def offsets(self, caption: str) -> np.ndarray:
        """Returns (start, stop) of each piece of `encode` in characters, 0, 0 for special tokens: int32 [L, 2]."""
        return np.array(self._tokenizer.encode(caption).offsets, np.int32)

    def with_mask(self) -> 'WordPiece':
        """Returns the word pieces, which must contain `[MASK]`.

        Raises:
          UserError: If they do not.
        """
        if MASK not in self.words:
            raise UserError(
                f'the word pieces lack {MASK}, which masking and changing words require: give the vocab.txt of a BERT'
            )
        return self

    @functools.cached_property
    def mask(self) -> int:
        """The id of `[MASK]`; the pieces must contain it."""
        return self._tokenizer.get_vocab()[MASK]

    @functools.cached_property
    def first_word(self) -> int:
        """The smallest id of a piece of text: `!` in BERT's vocabularies, else after special pieces."""
        special = [n for n, word in enumerate(self.words) if word in (*SPECIAL_PIECES, MASK)]
        return self.words.index('!') if '!' in self.words else 1 + max(special)

    @functools.cached_property
    def continues(self) -> np.ndarray:
        """bool [V], whether a piece continues the previous word."""
        return np.array([word.startswith('##') for word in self.words])


def word_pieces(ids: dict[str, int], unknown: str = UNK, **normalizer: bool | None) -> tokenizers.Tokenizer:
    """Makes the tokenizer of word pieces as transformers does, but for the start and the end.

    Args:
      ids: The pieces with their ids.
      unknown: The piece of a word without known pieces.
      **normalizer: The arguments of `BertNormalizer`.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def _is_cased(words: Sequence[str]) -> bool:
    """Returns whether pieces distinguish upper and lower case, as in BERT's cased models."""
    return any(word != word.lower() for word in words if not re.fullmatch(r'\[\w+\]', word))


def _words_in(content: Any) -> list[str]:
    """Returns the pieces of a `tokenizer.json`; raises a ValueError if their ids or their case are other ones."""
    ids = content['model']['vocab']
    lowercase = (content.get('normalizer') or {}).get('lowercase')
    words = sorted(ids, key=ids.get)
    if [ids[word] for word in words] != list(range(len(words))):
        raise ValueError('its ids have gaps')
    if lowercase is _is_cased(words):
        raise ValueError(f'its pieces are {"" if lowercase else "not "}of cased text, but lowercase is {lowercase}')
    return words
