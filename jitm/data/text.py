"""Words and their ids: the tokenizer and the vocabulary of the field's word-level text encoders."""

import collections
import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitm.errors import UserError

PAD, START, END, UNK = range(4)
MASK = '<mask>'
SPECIAL_WORDS = ('<pad>', '<start>', '<end>', '<unk>')

_ABBREVIATIONS = (
    'mr mrs ms dr prof rev gen col maj lt capt sgt sen gov st jr sr co corp inc ltd bros vs u.s u.k u.n d.c l.a n.y '
    'a.m p.m e.g i.e ph.d jan feb aug sept oct nov dec'
)
# Captions without quotes, inner periods, double dashes and NLTK's contractions: splitting at blanks gives the same.
_PLAIN = re.compile(r'(?!.*(?:--|cannot|gimme|gonna|gotta|lemme|wanna))(?:[a-z0-9 -]|,(?= ))*\.?')
_ACCENTS = '[\u0300-\u036f]*'
_INNER_STOP = re.compile(r'[.?!].', re.DOTALL)


@functools.cache
def _tokenizers() -> tuple[Any, Any]:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # takes as long as all else together
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    # NLTK's sentence splitter with its trained parameters (a download) left out but for the abbreviations: the other
    # ones only weigh capital letters, and captions are lower-cased.
    parameters = PunktParameters()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()


def tokenize(caption: str) -> list[str]:
    """Splits a caption into lower-cased words and punctuation marks, as `nltk.word_tokenize(caption.lower())` does.

    Args:
      caption: the sentence or sentences, as they were written.

    Returns:
      The tokens; empty for a blank caption.
    """
    caption = caption.strip().lower()
    if _PLAIN.fullmatch(caption):
        return caption.replace(',', ' , ').replace('.', ' . ').split()
    sentences, words = _tokenizers()
    split = sentences.tokenize(caption) if _INNER_STOP.search(caption) else [caption]
    return [word for sentence in split for word in words.tokenize(sentence)]


def _plain(character: str) -> str:
    """One character in lower case and without its accent, one again."""
    return unicodedata.normalize('NFD', character)[0].lower()[0]


def find_tokens(caption: str, tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Finds where the tokens of a caption stand in it.

    Args:
      caption: the sentence, as it was written.
      tokens: its words or pieces of words in their order, in lower case or not, with accents or not; `[UNK]` stands
        for a whole word.

    Returns:
      For each its first character, and the one after its last.

    Raises:
      ValueError: these are not its tokens.
    """
    plain, end, spans = ''.join(map(_plain, caption)), 0, []
    for token in tokens:
        letters = [_plain(character) for character in token if not unicodedata.combining(character)]
        written = r'\w+|\S' if token == '[UNK]' else ''.join(re.escape(letter) + _ACCENTS for letter in letters)
        if token in ('``', "''"):  # what NLTK makes of "
            written += '|"'
        match = re.compile(rf'\s*({written})').match(plain, end)
        if not match or not token:
            raise ValueError(f"'{caption}' does not go on with '{token}' at character {end}")
        end = match.end()
        spans.append(match.span(1))
    return spans


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The words a model knows.

    Attributes:
      words: V distinct words, the id of a word is its position; the first four are `SPECIAL_WORDS`.
    """

    words: tuple[str, ...]

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 4) -> 'Vocabulary':
        """Collects the words of a data set, in the order of their first occurrence.

        Args:
          captions: the sentences, as they were written.
          min_count: rarer words are left out.

        Returns:
          The vocabulary.
        """
        counts = collections.Counter(word for caption in captions for word in tokenize(caption))
        return cls(SPECIAL_WORDS + tuple(word for word, count in counts.items() if count >= min_count))

    @classmethod
    def load(cls, path: str) -> 'Vocabulary':
        """Reads a vocabulary file, ours or a published one.

        Args:
          path: a JSON file, see `from_json`.

        Returns:
          The vocabulary.

        Raises:
          UserError: the file is missing or damaged.
        """
        try:
            with open(path, encoding='utf-8') as file:
                text = file.read()
        except OSError as error:
            raise UserError(f'{path} cannot be read ({error.strerror}): give the path of a vocabulary.') from error
        except UnicodeDecodeError as error:
            raise UserError(f'{path} is not UTF-8 text: give the path of a JSON vocabulary.') from error
        return cls.from_json(text, path)

    @classmethod
    def from_json(cls, text: str, name: str) -> 'Vocabulary':
        """Parses the field's layout: `{"word2idx": {word: id}, "idx2word": {"id": word}, "idx": V}`.

        Args:
          text: the JSON text; further words at the end, such as `<mask>`, are kept.
          name: where it comes from, for messages.

        Returns:
          The vocabulary.

        Raises:
          UserError: it is not in that layout, ids are not 0 to V-1, or the special words do not stand at 0 to 3.
        """
        try:
            fields = json.loads(text)
            ids = {word: int(number) for word, number in fields['word2idx'].items()}
            words_of_ids = {int(number): word for number, word in fields['idx2word'].items()}
            size = int(fields['idx'])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f'{name} is not a vocabulary in the layout {{"word2idx": ..., "idx2word": ..., "idx": ...}} '
                f'({error!r}): give another file or build the vocabulary again.'
            ) from error
        words = tuple(sorted(ids, key=ids.get))
        if [ids[word] for word in words] != list(range(len(words))):
            raise UserError(f'{name} has word ids other than 0 to {len(words) - 1}: build the vocabulary again.')
        if words_of_ids != dict(enumerate(words)) or size != len(words):
            raise UserError(f'{name} has keys word2idx, idx2word and idx that disagree: build the vocabulary again.')
        if words[:4] != SPECIAL_WORDS:
            raise UserError(
                f'{name} begins with {", ".join(words[:4])}: ids 0 to 3 must be {", ".join(SPECIAL_WORDS)}; '
                'build the vocabulary again.'
            )
        return cls(words)

    def to_json(self) -> str:
        """Writes the layout that `from_json` reads.

        Returns:
          JSON text.
        """
        words_of_ids = dict(enumerate(self.words))
        return json.dumps({'word2idx': self._ids, 'idx2word': words_of_ids, 'idx': len(self)}, ensure_ascii=False)

    def encode(self, caption: str) -> np.ndarray:
        """Turns a caption into word ids.

        Args:
          caption: the sentence, as it was written.

        Returns:
          int32 [L]: `<start>`, the words, unknown ones as `<unk>`, `<end>`.
        """
        words = [self._ids.get(word, UNK) for word in tokenize(caption)]
        return np.array([START, *words, END], np.int32)

    def offsets(self, caption: str) -> np.ndarray:
        """Where the words of `encode` stand: int32 [L, 2], first character, one after the last; 0, 0 at both ends."""
        return np.array([(0, 0), *find_tokens(caption, tokenize(caption)), (0, 0)], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Turns word ids into text.

        Args:
          ids: [L], each below V; `<pad>`, `<start>` and `<end>` are left out.

        Returns:
          The words, separated by blanks.
        """
        return ' '.join(self.words[i] for i in ids if i not in (PAD, START, END))

    def with_mask(self) -> 'Vocabulary':
        """The vocabulary with `<mask>`, as one more word at its end if it has none."""
        return self if MASK in self._ids else Vocabulary((*self.words, MASK))

    @property
    def mask(self) -> int:
        """The id of `<mask>`, which must be there."""
        return self._ids[MASK]

    @property
    def first_word(self) -> int:
        """The id from which on there are words of text."""
        return len(SPECIAL_WORDS)

    @functools.cached_property
    def continues(self) -> np.ndarray:
        """bool [V], whether an id goes on with the word before it: never, these are whole words."""
        return np.zeros(len(self), bool)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        """SHA-256 of the words in their order, in hexadecimal: equal hashes mean equal ids."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """All texts of a split as word ids, end to end.

    Attributes:
      ids: int32 [sum of lengths].
      starts: int64 [T + 1], where each text begins; text t is `ids[starts[t]:starts[t + 1]]`.
    """

    ids: np.ndarray
    starts: np.ndarray

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int32 [T], words of each text, `<start>` and `<end>` included."""
        return np.diff(self.starts).astype(np.int32)


def join(texts: Sequence[np.ndarray]) -> Tokens:
    """Puts texts, each int32 [L], end to end."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in texts])])
    return Tokens(np.concatenate(texts), starts)
