"""CLIP's tokenizer: byte pairs (Radford et al., 2021, section 2.4)."""

import gzip
import html
import io
import itertools
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

from jitm.data.pieces import Pieces
from jitm.errors import UserError
from jitm.files import open_file, parse_json, read_bytes

START, END = '<|startoftext|>', '<|endoftext|>'
MAX_IDS = 77  # of a caption, as published
MAX_MERGES = 48894  # the first lines of the published file, which has more

_WORD_END = '</w>'
_WORDS = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
# Full-width and half-width forms, and ligatures, which the published tokenizer writes as the package ftfy does.
_WIDE_FORMS = (0x3000, *range(0xFF01, 0xFFF0), *range(0xFB00, 0xFB07), *range(0x1C4, 0x1CD), *range(0x1F1, 0x1F4))
_WIDE = {code: unicodedata.normalize('NFKC', chr(code)) for code in (0x132, 0x133, 0x149, *_WIDE_FORMS)}
_WIDE[0xFB05] = '\u017ft'
_QUOTES = {ord(quote): "'" for quote in '\u02bc\u2018\u2019\u201a\u201b'}
_QUOTES |= {ord(quote): '"' for quote in '\u201c\u201d\u201e\u201f'}
# The 256 characters that stand for bytes in published order, and again as the ends of words.
_BYTE_PIECES = [f'{byte}{end}' for end in ('', _WORD_END) for byte in sorted(pre_tokenizers.ByteLevel.alphabet())]


class BPE(Pieces):
    """The byte pairs of a CLIP: every byte is known, and there is no mask."""

    NAME = 'byte pairs of CLIP'
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
    def load(cls, path: str, max_length: int = MAX_IDS) -> 'BPE':
        """Reads published merges.

        Args:
          path: A `merges.txt`, or `bpe_simple_vocab_16e6.txt.gz`, with a header and a merge per line, or a
            `tokenizer.json` with the same merges.
          max_length: The maximum number of ids of a caption.

        Returns:
          The byte pairs.

        Raises:
          UserError: If the file cannot be read, or a line is not a merge of two known pieces.
        """
        try:
            if path.endswith('.json'):
                listed = parse_json(read_bytes(path))['model']['merges']
                merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in listed]
            else:
                merges = _from_text(path)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, 'strerror', None) or error
            raise UserError(f'{path} cannot be read ({reason}): give the path of the merges of a CLIP') from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f'{path} has no merges: give the merges.txt or tokenizer.json of a CLIP') from error
        known = set(_BYTE_PIECES)
        for number, merge in enumerate(merges, 1):
            parts = merge.split(' ')
            if len(parts) != 2 or not known.issuperset(parts) or ''.join(parts) in known:
                raise UserError(f"{path} has '{merge}' as merge {number}: give the merges of a CLIP")
            known.add(''.join(parts))
        return cls.of(merges, max_length)

    def encode(self, caption: str) -> np.ndarray:
        """Converts a caption to ids.

        Args:
          caption: A caption, not preprocessed; HTML entities, curly quotes, full-width characters and ligatures are
            replaced, letters lower-cased, blanks collapsed. The published tokenizer also repairs wrongly decoded text
            and removes codes of terminals. Names of special pieces are ordinary text.

        Returns:
          int32 [L]: the start, the pieces and the end, at most `max_length` ids, the last of which is the end.
        """
        text = html.unescape(html.unescape(caption)).translate(_WIDE).translate(_QUOTES)
        return super().encode(unicodedata.normalize('NFC', text).lower())


def _from_text(path: str) -> list[str]:
    with open_file(path) as file, io.TextIOWrapper(gzip.open(file) if path.endswith('.gz') else file, 'utf-8') as text:
        lines = (line.rstrip('\n') for line in itertools.islice(text, 1, 1 + MAX_MERGES))
        merges = [line for line in lines if line]
    if not merges:
        raise ValueError(path)
    return merges
