"""BERT's tokenizer and vocabulary of word pieces."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jitm.data.text.pieces import Pieces
from jitm.errors import UserError
from jitm.files import parse_json, read_text, split_lines

MASK = '[MASK]'
PAD, UNK, CLS, SEP = SPECIAL_PIECES = ('[PAD]', '[UNK]', '[CLS]', '[SEP]')


class WordPiece(Pieces):
    """The word pieces of a BERT; those that continue a word start with `##`.

    A caption starts with `[CLS]` and ends with `[SEP]`, and a word without known pieces is `[UNK]`.
    """

    NAME = 'word pieces'
    UNKNOWN = UNK
    OMITTED = PAD, CLS, SEP

    @classmethod
    def of(cls, words: Sequence[str], start: str = CLS, end: str = SEP) -> 'WordPiece':
        """Makes a tokenizer, which lower-cases captions and removes accents unless the pieces have capitals.

        Args:
          words: The V distinct pieces; the id of a piece is its index. `[PAD]` is the first, and the other
            `SPECIAL_PIECES` are among them.
          start: The piece before a caption.
          end: The piece after a caption.
        """
        ids = {word: number for number, word in enumerate(words)}
        tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=UNK))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not _is_cased(words))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        return cls((tokenizer.to_str(),))

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
            words = _words_in(parse_json(text)) if path.endswith('.json') else split_lines(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f'{path} has no word pieces of a BERT ({error}): give the path of a vocab.txt') from error
        absent = [piece for piece in SPECIAL_PIECES if piece not in words]
        if absent:
            raise UserError(f'{path} lacks {", ".join(absent)}: give the vocab.txt of a BERT')
        if words[0] != PAD:
            raise UserError(f'{path} has {PAD} at line {words.index(PAD) + 1}, but padding is 0: it must be line 1')
        if len(set(words)) < len(words):
            duplicate = next(word for n, word in enumerate(words) if word in words[:n])
            raise UserError(f"{path} has '{duplicate}' twice: give the vocab.txt of a BERT")
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
