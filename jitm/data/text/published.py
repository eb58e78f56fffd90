"""The tokenizers of published folders of text encoders: those of a BERT, and others as they are."""

import functools
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jitm.data.text.pieces import Pieces, from_model
from jitm.data.text.wordpiece import SPECIAL_PIECES, WordPiece
from jitm.errors import UserError
from jitm.files import hash_json, parse_json, read_bytes, split_lines

START, PADDING, END, UNKNOWN, MASK = '<s>', '<pad>', '</s>', '<unk>', '<mask>'  # but of a BERT
OF_A_BERT = 'normalizer', 'pre_tokenizer', 'model'  # what a tokenizer shares with that of `WordPiece.of`


class PublishedPieces(Pieces):
    """The pieces of a published tokenizer of any kind, such as those of MPNet, RoBERTa and XLM-R."""

    NAME = 'pieces'
    OMITTED = START, PADDING, END, *WordPiece.OMITTED

    @functools.cached_property
    def unknown(self) -> int:
        """The id of text without a piece; -1 if there is no such text."""
        model = parse_json(self.definition[0])['model']
        if 'unk_id' in model:
            return -1 if model['unk_id'] is None else model['unk_id']
        number = self._tokenizer.token_to_id(model.get('unk_token') or '')
        return -1 if number is None else number

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the whole tokenizer, as hex: equal hashes mean equal ids."""
        return hash_json([self.NAME, parse_json(self.definition[0])])


def load_folder(folder: str, max_length: int | None = None) -> WordPiece | PublishedPieces:
    """Reads the tokenizer of a folder of Hugging Face.

    Truncation and padding that a `tokenizer.json` states are not read.

    Args:
      folder: The folder, with one of `READERS`.
      max_length: The maximum number of ids of a caption; longer ones are cut. None for any.

    Returns:
      The tokenizer, as `WordPiece` if it is that of a BERT.

    Raises:
      UserError: If it has no tokenizer, or one that cannot be read, or that adds no special pieces.
    """
    file = next((Path(folder, name) for name in READERS if Path(folder, name).is_file()), None)
    if file is None:
        raise UserError(f'{folder} has no {" or ".join(READERS)}: add the tokenizer that it was published with')
    try:
        tokenizer = READERS[file.name](file, _read_config(file.with_name('tokenizer_config.json')))
        lowers = any(_read_config(one).get('do_lower_case') for one in Path(folder).glob('sentence_*_config.json'))
    except OSError as error:
        raise UserError(f'{error.filename} cannot be read ({error.strerror}): download it again') from error
    except Exception as error:  # tokenizers raises no narrower one
        raise UserError(f'{file} is no tokenizer ({error}): download it again') from error
    if lowers and not getattr(tokenizer.normalizer, 'lowercase', False):
        steps = normalizers.Lowercase(), tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([*filter(None, steps)])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if len(tokenizer.encode('').ids) != 2:  # the start and the end
        raise UserError(f'{file} adds no start and end to a text: give the tokenizer of a BERT')
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return WordPiece((tokenizer.to_str(),)) if _is_of_a_bert(tokenizer) else PublishedPieces((tokenizer.to_str(),))


def _is_of_a_bert(tokenizer: tokenizers.Tokenizer) -> bool:
    """Returns whether a tokenizer is the one that `WordPiece.of` makes of its pieces."""
    words = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    if words[0] != SPECIAL_PIECES[0] or not {*SPECIAL_PIECES} <= {*words}:
        return False
    ours, theirs = (parse_json(text) for text in (*WordPiece.of(words).definition, tokenizer.to_str()))
    return all(ours[key] == theirs[key] for key in OF_A_BERT)


def _read_config(file: Path) -> dict[str, Any]:
    return dict(parse_json(read_bytes(file))) if file.is_file() else {}


def _of_json(file: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    del stated  # the file has all
    return tokenizers.Tokenizer.from_str(file.read_text(encoding='utf-8'))


def _of_words(file: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a BERT or an MPNet; that of MPNet has other special pieces."""
    words = split_lines(file.read_text(encoding='utf-8'))
    tokenizer = tokenizers.Tokenizer.from_str(*WordPiece.of(words).definition)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=stated.get('do_lower_case', tokenizer.normalizer.lowercase),
        strip_accents=stated.get('strip_accents'),
        handle_chinese_chars=stated.get('tokenize_chinese_chars', True),
    )
    if words[0] == START:
        tokenizer.post_processor = _between(words.index(START), words.index(END))
    return tokenizer


def _of_bytes(file: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a RoBERTa, whose pieces have bytes and their blanks, and capitals."""
    ids = parse_json(read_bytes(file))
    merges = split_lines(file.with_name('merges.txt').read_text(encoding='utf-8'))
    pairs = [tuple(line.split(' ')) for line in merges if line and not line.startswith('#version')]
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=stated.get('add_prefix_space', False))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _between(ids[START], ids[END])
    return tokenizer


def _of_sentencepiece(file: Path, stated: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer of an XLM-R, in which special pieces take the place of the first three of the file."""
    del stated
    tokenizer = from_model(read_bytes(file))
    _, _, _, *pieces = parse_json(tokenizer.to_str())['model']['vocab']
    special = [(piece, 0.0) for piece in (START, PADDING, END, UNKNOWN)]
    pieces = [*special, *map(tuple, pieces), (MASK, 0.0)]
    tokenizer.model = models.Unigram(pieces, special.index((UNKNOWN, 0.0)), byte_fallback=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), tokenizer.pre_tokenizer])
    tokenizer.post_processor = _between(0, special.index((END, 0.0)))
    return tokenizer


def _between(start: int, end: int) -> processors.PostProcessor:
    """Returns the step that puts a text between the special pieces with these ids."""
    return processors.TemplateProcessing(f'{START} $A {END}', special_tokens=[(START, start), (END, end)])


READERS = {  # file -> reads it, given the content of `tokenizer_config.json`
    'tokenizer.json': _of_json,
    'vocab.txt': _of_words,
    'vocab.json': _of_bytes,
    'sentencepiece.bpe.model': _of_sentencepiece,
}
