"""The word pieces of a BLIP: those of a BERT and two more, for captions that lose punctuation and are cut."""

from collections.abc import Sequence

import tokenizers
from tokenizers import Regex, normalizers

from jitm.data.text.wordpiece import WordPiece

BLIP_PIECES = ('[DEC]', '[ENC]')  # the last two
MAX_IDS = 35  # ids of a caption
_CLEANING = [  # as in the released code: without some punctuation, cut after 30 words
    normalizers.Replace(Regex(r'[.!"()*#:;~]'), ' '),
    normalizers.Replace(Regex(r'\s{2,}'), ' '),
    normalizers.Strip(),
    normalizers.Replace(Regex(r'^([^ ]+ ){29}[^ ]+\K [\s\S]*'), ''),
]


def of_blip(words: Sequence[str]) -> WordPiece:
    """Makes the tokenizer of a BLIP.

    Args:
      words: The pieces of its BERT, see `WordPiece.of`, with or without `BLIP_PIECES` at the end.
    """
    words = words if tuple(words[-2:]) == BLIP_PIECES else (*words, *BLIP_PIECES)
    tokenizer = tokenizers.Tokenizer.from_str(*WordPiece.of(words).definition)
    tokenizer.normalizer = normalizers.Sequence([*_CLEANING, tokenizer.normalizer])
    tokenizer.enable_truncation(MAX_IDS)
    return WordPiece((tokenizer.to_str(),))
