"""The tokenizer and the vocabulary of word-level text encoders."""

import array
import collections
import dataclasses
import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitm.data.arrays import Rows
from jitm.errors import UserError
from jitm.files import hash_json, parse_json

PAD, START, END, UNK = range(4)
MASK = '<mask>'
SPECIAL_WORDS = ('<pad>', '<start>', '<end>', '<unk>')

_ABBREVIATIONS = (
    'mr mrs ms dr prof rev gen col maj lt capt sgt sen gov st jr sr co corp inc ltd bros vs u.s u.k u.n d.c l.a n.y '
    'a.m p.m e.g i.e ph.d jan feb aug sept oct nov dec'
)
# Captions without quotes, inner periods, double dashes and NLTK's contractions, which NLTK splits at blanks.
_PLAIN = re.compile(r'(?!.*(?:--|cannot|gimme|gonna|gotta|lemme|wanna))(?:[a-z0-9 -]|,(?= ))*\.?')
_ACCENTS = '[\u0300-\u036f]*'
_INNER_STOP = re.compile(r'[.?!].', re.DOTALL)


@functools.cache
def _tokenizers() -> tuple[Any, Any]:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # slow to import
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    # NLTK's splitter needs a download of trained parameters. Only the abbreviations in them matter: the others weigh
    # capital letters, and captions are lower-cased.
    parameters = PunktParameters()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()


def tokenize(caption: str) -> list[str]:
    """Splits a caption into lower-cased words and punctuation marks, as `nltk.word_tokenize(caption.lower())` does.

    Args:
      caption: A caption, not preprocessed.

    Returns:
      The tokens; empty for a blank caption.
    """
    caption = caption.strip().lower()
    if _PLAIN.fullmatch(caption):
        return caption.replace(',', ' , ').replace('.', ' . ').split()
    sentences, words = _tokenizers()
    split = sentences.tokenize(caption) if _INNER_STOP.search(caption) else [caption]
    return [*itertools.chain.from_iterable(map(words.tokenize, split))]


def _plain(character: str) -> str:
    """Returns one character in lower case and without its accent."""
    return unicodedata.normalize('NFD', character)[0].lower()[0]


def find_tokens(caption: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Finds the characters of the tokens of a caption.

    Args:
      caption: A caption, not preprocessed.
      tokens: Its words or word pieces in order, of any case, with or without accents; `[UNK]` matches a whole word.

    Returns:
      (start, stop) of each token, in characters.

    Raises:
      ValueError: If these are not the tokens of the caption.
    """
    plain = ''.join(map(_plain, caption))
    end = 0
    spans = []
    for token in tokens:
        letters = [_plain(character) for character in token if not unicodedata.combining(character)]
        pattern = r'\w+|\S' if token == '[UNK]' else ''.join(re.escape(letter) + _ACCENTS for letter in letters)
        if token in ('``', "''"):  # NLTK's tokens for "
            pattern += '|"'
        match = re.compile(rf'\s*({pattern})').match(plain, end)
        if not match or not token:
            raise ValueError(f"'{caption}' has no token '{token}' at character {end}")
        end = match.end()
        spans.append(match.span(1))
    return spans


@dataclasses.dataclass(frozen=True, repr=False)
class Vocabulary:
    """The words of a model.

    Attributes:
      words: The V distinct words; the id of a word is its index, and the first four are `SPECIAL_WORDS`.
    """

    words: tuple[str, ...]

    unknown: ClassVar = UNK
    first_word: ClassVar = len(SPECIAL_WORDS)  # the smallest id of a word that is not special

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4) -> 'Vocabulary':
        """Collects the words of a data set, in the order of their first occurrence.

        Args:
          captions: The captions, not preprocessed.
          min_count: The smallest number of occurrences; rarer words are omitted.

        Returns:
          The vocabulary.
        """
        counts = collections.Counter(itertools.chain.from_iterable(map(tokenize, captions)))
        return cls(SPECIAL_WORDS + tuple(word for word, count in counts.items() if count >= min_count))

    @classmethod
    def from_json(cls, text: str, name: str) -> 'Vocabulary':
        """Parses the field's layout: `{"word2idx": {word: id}, "idx2word": {"id": word}, "idx": V}`, or `{word: id}`.

        Args:
          text: The JSON text; additional words at the end, such as `<mask>`, are kept.
          name: The source, for messages.

        Returns:
          The vocabulary.

        Raises:
          UserError: If the layout is another one, the ids are not 0 to V-1, or the special words do not have ids 0 to
            3.
        """
        try:
            fields = parse_json(text)
        except ValueError:
            fields = None
        return cls.from_fields(fields, name)

    @classmethod
    def from_fields(cls, fields: Any, name: str) -> 'Vocabulary':
        """Makes the vocabulary of the fields of the layout, see `from_json`; `idx2word` may be a list, or left out."""
        try:
            stored = fields if 'word2idx' in fields or not fields else {'word2idx': fields}
            ids = {word: int(number) for word, number in stored['word2idx'].items()}
            words_of_ids = stored.get('idx2word', {number: word for word, number in ids.items()})
            if isinstance(words_of_ids, list):
                words_of_ids = dict(enumerate(words_of_ids))
            words_of_ids = {int(number): word for number, word in words_of_ids.items()}
            size = int(stored.get('idx', len(ids)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f'{name} is not a vocabulary in the layout {{"word2idx": ..., "idx2word": ..., "idx": ...}} '
                f'({error!r}): give another file or build the vocabulary again'
            ) from error
        words = tuple(sorted(ids, key=ids.get))
        if [ids[word] for word in words] != list(range(len(words))):
            raise UserError(f'{name} has word ids other than 0 to {len(words) - 1}: build the vocabulary again')
        if words_of_ids != dict(enumerate(words)) or size != len(words):
            raise UserError(f'{name} has keys word2idx, idx2word and idx that disagree: build the vocabulary again')
        if words[:4] != SPECIAL_WORDS:
            raise UserError(
                f'{name} starts with {", ".join(words[:4])}: ids 0 to 3 must be {", ".join(SPECIAL_WORDS)}; '
                'build the vocabulary again'
            )
        return cls(words)

    def to_json(self) -> str:
        """Returns JSON in the layout that `from_json` reads."""
        words_of_ids = dict(enumerate(self.words))
        return json.dumps({'word2idx': self._ids, 'idx2word': words_of_ids, 'idx': len(self)}, ensure_ascii=False)

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to word ids.

        Args:
          caption: A caption, not preprocessed.

        Returns:
          int32 [L]: `<start>`, the words, unknown ones as `<unk>`, `<end>`.
        """
        words = [self._ids.get(word, UNK) for word in tokenize(caption)]
        return np.array([START, *words, END], np.int32)

    def unknown_words(self, caption: str) -> list[str]:
        """Returns the words of a caption that the vocabulary lacks, each once."""
        return list(dict.fromkeys(word for word in tokenize(caption) if word not in self._ids))

    def offsets(self, caption: str) -> np.ndarray:
        """Returns (start, stop) of each word of `encode` in characters, 0, 0 for special tokens: int32 [L, 2]."""
        return np.array([(0, 0), *find_tokens(caption, tokenize(caption)), (0, 0)], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts word ids to text.

        Args:
          ids: [L], each below V; `<pad>`, `<start>` and `<end>` are omitted.

        Returns:
          The words, separated by blanks.
        """
        return ' '.join(self.words[i] for i in ids if i not in (PAD, START, END))

    def with_mask(self) -> 'Vocabulary':
        """Returns the vocabulary with `<mask>`, which is appended if missing."""
        return self if MASK in self._ids else Vocabulary((*self.words, MASK))

    @property
    def mask(self) -> int:
        """The id of `<mask>`; the vocabulary must have it."""
        return self._ids[MASK]

    @functools.cached_property
    def continues(self) -> np.ndarray:
        """bool [V], whether an id continues the previous word: False for whole words."""
        return np.zeros(len(self), bool)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        """SHA-256 of the words in order, as hex: equal hashes mean equal ids."""
        return hash_json(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


@dataclasses.dataclass(frozen=True, repr=False)
class Tokens:
    """All texts of a split as concatenated ids.

    Attributes:
      ids: int32 [sum of lengths].
      starts: int64 [T + 1], start of each text; text t is `ids[starts[t]:starts[t + 1]]`.
      tags: The words of the I images' object tags, see `Images.tags`; None without tags.
      vectors: float16 or float32 [sum of lengths, F], the vector of each id by a frozen encoder; None without.
    """

    ids: np.ndarray
    starts: np.ndarray
    tags: 'Tokens | None' = None
    vectors: np.ndarray | Rows | None = None

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int32 [T], number of ids of each text, special tokens included."""
        return np.diff(self.starts).astype(np.int32)

    def rows(self, texts: np.ndarray) -> np.ndarray:
        """Returns the positions of the ids of some texts, int [N], one text after another."""
        return np.concatenate([np.arange(self.starts[text], self.starts[text + 1]) for text in texts])

    def take(self, texts: np.ndarray) -> 'Tokens':
        """Returns some texts, int [N], without tags."""
        rows = self.rows(texts)
        starts = np.concatenate([[0], np.cumsum(self.lengths[texts])])
        return Tokens(self.ids[rows], starts, vectors=None if self.vectors is None else Rows(self.vectors, rows))


def join(texts: Iterable[np.ndarray]) -> Tokens:
    """Concatenates texts, each int32 [L]; none of them is kept."""
    joined = array.array('i')
    starts = array.array('q', [0])
    for ids in texts:
        joined.frombytes(ids.astype(np.int32).tobytes())
        starts.append(len(joined))
    return Tokens(np.frombuffer(joined, np.int32), np.frombuffer(starts, np.int64))
