"""Rules that find objects, attributes and relations from words with Penn Treebank tags.

Every word is mapped to one letter, so that the rules are regular expressions. One pass from left to right then links
noun phrases by the verbs and prepositions between them.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

Span = tuple[int, int]  # (start, stop) in characters


class CaptionGraph(NamedTuple):
    """The objects, attributes and relations of a caption, as spans of characters.

    Attributes:
      objects: The mentions with their compound nouns, without attributes; the head is the last word.
      attributes: The adjectives, numbers, participles, and verbs without an object.
      relations: The verbs and prepositions between two mentions.
      described: The pairs (object, attribute) of indices, if known.
    """

    objects: tuple[Span, ...] = ()
    attributes: tuple[Span, ...] = ()
    relations: tuple[Span, ...] = ()
    described: tuple[tuple[int, int], ...] = ()


class Token(NamedTuple):
    """A word of a caption in lower case, its Penn Treebank tag, and its span of characters."""

    word: str
    tag: str
    span: Span


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The letters of words: a noun N, plural S; adjective J; participle before a noun M; number C; measure Q; determiner D,
# for one thing a; pronoun E; possessive 's H; verb V, -s Z, past L, -ing G, past participle Y; auxiliary B, or U if
# that depends on the next word; to T, in infinitives I; preposition P; adverb R; and/or A; comma K; who/which W; a
# word that starts a clause X; anything else O.
_LETTERS = {
    'NN': 'N', 'NNP': 'N', 'NNS': 'S', 'NNPS': 'S', 'JJ': 'J', 'JJR': 'J', 'JJS': 'J', 'CD': 'C', 'DT': 'D', 'PDT': 'D',
    'PRP$': 'D', 'WP$': 'D', 'PRP': 'E', 'EX': 'E', 'POS': 'H', 'VB': 'V', 'VBZ': 'Z', 'VBP': 'V', 'VBD': 'L',
    'VBG': 'G', 'VBN': 'Y', 'MD': 'B', 'TO': 'T', 'IN': 'P', 'RB': 'R', 'RBR': 'R', 'RP': 'R', 'CC': 'A', ',': 'K',
    'WDT': 'W', 'WP': 'W', 'WRB': 'X',
}  # fmt: skip
_SAME_LETTER = {
    'a': _words('a an one another each every this'),
    'B': _words("am is are was were be been being 'm 're"),
    'U': _words("have has had having do does did 've"),
    'X': _words('while as because if though although when whereas so than since'),
    'W': _words('that'),
    'P': _words('down past'),
    'N': _words('sports clothes news'),
}
_LETTER_OF: dict[str, str] = {}
for _letter, _same in _SAME_LETTER.items():
    _LETTER_OF |= dict.fromkeys(_same, _letter)

_PLACES = 'front|back|top|side|left|right|middle|center|centre|edge|bottom|end|corner|base|rear'
_COLOURS = 'red|green|blue|yellow|purple|orange|pink|brown|gray|grey|tan|black|white|gold|silver'
_PHRASES = (
    (r'\d+', 'C'),
    (rf'(?:light|dark|bright|pale)(?= (?:{_COLOURS}) )', 'J'),
    (r'each other', 'E'),
    (r'(?:lots?|bunch|couple|number|variety|bits?|part|front|one|two|three|many|some|all|both|each|most) of', 'D'),
    (r'(?:groups?|pairs?|rows?|crowd|herd|flock|pieces?|slices?|piles?|stacks?) of', 'Q'),
    (rf'(?:in|on|at|to|along|near|by)(?: the)?(?: (?:left|right|far|other))?(?: hand)? (?:{_PLACES}) of', 'P'),
    (r'next to|close to|left of|right of|full of|side by side with|out of|in between', 'P'),
)
_PHRASES = tuple((re.compile(rf'(?<!\S)(?:{pattern})(?!\S)'), letter) for pattern, letter in _PHRASES)

_BEFORE_NOUN = r'((?:[aDCH](?:R?[JM][AK]{0,2})*)|P)'
# Corrections of tags that are ambiguous in captions, where a tagger has little context.
_REWRITES = (
    (r'U(?=R*[VZLGYB])', 'B'),
    (r'U', 'V'),
    (r'T(?=[VLGB])', 'I'),
    (r'T[NS](?=[aD])', 'IV'),  # to board the train
    (r'T', 'P'),
    (r'(?<=[aDJCH])[VZ]|(?<=P)V(?=[PAKO]|\Z)|\AV(?=[GYBP])', 'N'),  # the bear; next to monitor; bear in the grass
    (r'(a(?:R?J|C|G|Y|[AK])*N+)S', r'\1V'),  # a boy jumps
    (r'(?<=[NS])[NS](?=[aD])|(?<=S)N(?=[PR])', 'V'),  # people surf the waves; men jump for it
    (r'(?<=ZA)S|(?<=W)S', 'V'),  # walks and talks; who talks
    (r'(?<=G)[YL](?=J*[NS])|\AY(?=J*[NS])', 'M'),  # wearing striped shirts; sliced pizza
    (rf'{_BEFORE_NOUN}[GYL](?=[JNSGY]*[NS])', r'\1M'),  # a barking dog
    (rf'{_BEFORE_NOUN}[GYL](?=[JNSGY]*[NS])', r'\1M'),  # a stuffed barking dog
    (r'([aD](?:R?J)*)J(?![JNSMC]|[AK]+R?[JM])', r'\1N'),  # the top is blue
    (r'(?<=[aDJ])[aC](?!R?[aDJCNSMGYL])', 'N'),  # another one
    (r'[aD]', 'D'),
    (r'S', 'N'),
    (r'[ZLGY]', 'V'),
)
_REWRITES = tuple((re.compile(pattern), letters) for pattern, letters in _REWRITES)
_ATTRIBUTE = re.compile(r'R?[JM]|C|Q+')
_ELEMENT = re.compile(
    r'(?P<noun>(?:D|Q|C|R?[JM]|(?<=[JM])[KA]{1,2}(?=R?[JM]))*N+)|(?P<adjective>R?J)|(?P<preposition>P+)|(?P<other>.)'
)
_SHADES = _words('dark light bright pale')
_IGNORED = _words('other same such own')
_DESCRIBING_NOUNS = _words(
    'silver gold orange pink tan cream maroon beige turquoise khaki teal navy purple brown red green blue black white '
    'metal wood brick glass plastic stone concrete leather steel iron denim cotton dirt cement wire'
)


def _letters(tokens: Sequence[Token]) -> str:
    letters = [_LETTER_OF.get(token.word) or _LETTERS.get(token.tag, 'O') for token in tokens]
    text = ' '.join(token.word for token in tokens)
    for pattern, letter in _PHRASES:
        for match in pattern.finditer(text):
            start = text.count(' ', 0, match.start())
            stop = start + 1 + match[0].count(' ')
            letters[start:stop] = letter * (stop - start)
    rewritten = ''.join(letters)
    for pattern, letter in _REWRITES:
        rewritten = pattern.sub(letter, rewritten)
    return rewritten


class _Pending(NamedTuple):
    """A verb from `start` to `verb` (if any) with its subjects, and prepositions to `stop`, before their object."""

    subjects: tuple[int, ...]
    start: int
    verb: int
    stop: int


class Reader:
    """One pass over a caption; indices of words are converted to characters at the end."""

    def __init__(self, tokens: Sequence[Token]):
        """Starts with the words of a tagged caption in order, punctuation marks included."""
        self._tokens = tokens
        self._objects: list[Span] = []
        self._attributes: list[Span] = []
        self._relations: list[Span] = []
        self._described: list[tuple[int, int]] = []
        self._subjects: tuple[int, ...] = ()  # the subjects of the clause
        self._nearest: tuple[int, ...] = ()  # the last noun phrases
        self._pending: _Pending | None = None
        self._joins = False  # after and/or, or a comma
        self._has_related = False  # the last relation has an object, to which and/or can add another
        self._copula = False

    def read(self) -> CaptionGraph:
        """Returns the scene graph of the caption."""
        letters = _letters(self._tokens)
        for match in _ELEMENT.finditer(letters):
            start, stop = match.span()
            kind = match.lastgroup
            if kind == 'noun':
                self._noun_phrase(letters, start, stop)
            elif kind == 'adjective':
                self._describe(self._subjects if self._copula else self._nearest or self._subjects, start, stop)
            elif kind == 'preposition':
                self._preposition(start, stop)
            else:
                self._other(letters[start], start)
        self._end_pending()
        phrases = map(self._characters, (self._objects, self._attributes, self._relations))
        return CaptionGraph(*phrases, tuple(self._described))

    def _characters(self, phrases: list[Span]) -> tuple[Span, ...]:
        """Returns spans of characters for spans of words."""
        return tuple((self._tokens[start].span[0], self._tokens[stop - 1].span[1]) for start, stop in phrases)

    def _describe(self, objects: tuple[int, ...], start: int, stop: int) -> None:
        if self._tokens[stop - 1].word in _IGNORED:
            return
        self._described += [(thing, len(self._attributes)) for thing in objects]
        self._attributes.append((start, stop))

    def _end_pending(self) -> None:
        """Makes a verb without an object an attribute of its subject."""
        if self._pending and self._pending.verb > self._pending.start:
            self._describe(self._pending.subjects, self._pending.start, self._pending.verb)
        self._pending = None

    def _end_relation(self) -> None:
        """Makes a verb or preposition with an object a relation."""
        self._relations.append((self._pending.start, self._pending.stop))
        self._has_related = True
        self._pending = None

    def _noun_phrase(self, letters: str, start: int, stop: int) -> None:
        head = letters.index('N', start)
        while head + 1 < stop and self._tokens[head].word in _DESCRIBING_NOUNS:
            head += 1
        this = (len(self._objects),)
        self._objects.append((head, stop))
        modifiers = letters[:head].replace('N', 'J')
        shade = None
        for match in _ATTRIBUTE.finditer(modifiers, start, head):
            first = match.start() if shade is None else shade
            shade = first if self._tokens[match.end() - 1].word in _SHADES and match.end() < head else None
            if shade is None:
                self._describe(this, first, match.end())
        if self._pending:
            self._end_relation()
        elif self._joins and self._has_related and letters[stop : stop + 1] != 'B':
            pass  # one more object of the last relation
        elif self._joins and self._subjects == self._nearest:
            self._subjects += this
            self._nearest = self._subjects
            self._joins = False
            return
        else:
            self._subjects = this
        self._nearest = this
        self._joins = self._copula = False

    def _preposition(self, start: int, stop: int) -> None:
        if self._pending:
            self._pending = self._pending._replace(stop=stop)
        else:
            self._pending = _Pending((), start, start, stop)
        self._copula = False

    def _other(self, letter: str, word: int) -> None:
        if letter == 'V':
            self._end_pending()
            self._pending = _Pending(self._subjects, word, word + 1, word + 1)
            self._nearest = ()
            self._copula = self._joins = False
        elif letter == 'B':
            self._end_pending()
            self._copula = True
        elif letter in 'AK':
            self._end_pending()
            self._joins = True
        elif letter == 'W':
            self._end_pending()
            self._subjects = self._nearest
        elif letter == 'E':
            if self._pending:
                self._end_relation()
            else:
                self._subjects = ()
            self._nearest = ()
        elif letter in 'XOID':
            self._end_pending()
            self._joins = self._has_related = False
