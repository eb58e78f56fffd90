"""The tokenizers of published folders of text encoders: those of a BERT, and others as they are."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tokenizers
from annotated_types import Ge
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from jitm.config.foreign import declared, read_declared, read_if_present
from jitm.data.text.pieces import Pieces, from_model
from jitm.data.text.wordpiece import CLS, SEP, SPECIAL_PIECES, UNK, WordPiece, word_pieces
from jitm.errors import UserError
from jitm.files import hash_json, parse_json, read_bytes, split_lines

SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')  # but of a BERT
START, PADDING, END, UNKNOWN = SPECIAL
MASK = '<mask>'
OF_A_BERT = 'normalizer', 'pre_tokenizer', 'model'  # what a tokenizer shares with that of `WordPiece.of`
OF_WORDS = ('BertTokenizer', 'DistilBertTokenizer', 'MPNetTokenizer')
OF_BYTES = ('RobertaTokenizer',)
OF_SENTENCES = ('XLMRobertaTokenizer',)
OF_ANY = ('CamembertTokenizer', 'PreTrainedTokenizer', 'TokenizersBackend', None)
CLASSES = (*OF_WORDS, *OF_BYTES, *OF_SENTENCES, *OF_ANY)
FAST = [f'{name}Fast' for name in CLASSES if name]
CLASS_OF = {  # model_type -> the tokenizer_class of a folder that states none
    'bert': 'BertTokenizer',
    'distilbert': 'DistilBertTokenizer',
    'mpnet': 'MPNetTokenizer',
    'roberta': 'RobertaTokenizer',
    'xlm-roberta': 'XLMRobertaTokenizer',
    'camembert': 'CamembertTokenizer',
}
PADDED = 'mpnet', 'roberta', 'xlm-roberta', 'camembert'  # model types of which padding, 1, has no position
KINDS = 'bert', 'roberta', 'distilbert', 'camembert', 'albert', 'xlm-roberta', 'xlnet'  # as sentence-transformers
NO_LIMIT = 10**6  # transformers writes 10^30 as the length of a tokenizer without one
# Keys of a `tokenizer_config.json` that change the ids of no text.
SHARED_HARMLESS = """
    backend clean_up_tokenization_spaces errors from_slow is_local local_files_only max_length merges_file name_or_path
    pad_to_multiple_of pad_token_type_id processor_class special_tokens_map_file stride tokenizer_file
    truncation_strategy use_fast vocab_file
"""
# Those that change no ids of a text without special pieces.
HARMLESS = f"""{SHARED_HARMLESS}
    add_special_tokens additional_special_tokens bos_token chat_template eos_token extra_special_tokens
    full_tokenizer_file mask_token return_token_type_ids trim_offsets
"""


@declared
class TokenizerConfig:
    """`tokenizer_config.json` of transformers, whose values take precedence over those of `tokenizer.json`."""

    harmless = HARMLESS
    remedy = 'give another tokenizer'

    tokenizer_class: Literal[*CLASSES, *FAST] = None
    model_max_length: Annotated[float, Ge(2)] | None = None
    max_len: Annotated[float, Ge(2)] | None = None  # its old name
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    add_prefix_space: bool | None = None
    do_basic_tokenize: Literal[True] = True
    never_split: None = None
    padding_side: Literal['right'] = 'right'
    truncation_side: Literal['right'] = 'right'
    split_special_tokens: Literal[False] = False
    cls_token: str | dict | None = None
    sep_token: str | dict | None = None
    unk_token: str | dict | None = None
    pad_token: str | dict | None = None
    added_tokens_decoder: dict | None = None
    model_input_names: Sequence = ('attention_mask',)

    @property
    def length(self) -> int | None:
        """The maximum number of ids of a text; None without a limit."""
        limit = self.model_max_length or self.max_len
        return int(limit) if limit and limit < NO_LIMIT else None

    def is_of(self, classes: tuple[str, ...]) -> bool:
        """Returns whether the tokenizer is of one of these classes."""
        return (self.tokenizer_class or '').removesuffix('Fast') in classes


class PublishedPieces(Pieces):
    """The pieces of a published tokenizer of any kind, such as those of MPNet, RoBERTa and XLM-R."""

    NAME = 'pieces'
    OMITTED = START, PADDING, END, *WordPiece.OMITTED

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
    config = read_tokenizer_config(Path(folder))
    if config.is_of(OF_SENTENCES) and config.add_prefix_space is False:
        raise UserError(f"{folder} states 'add_prefix_space' false, which a {OF_SENTENCES[0]} is not read with")
    try:
        tokenizer = READERS[file.name](file, config)
        _add_tokens(tokenizer, file, config)
    except OSError as error:
        raise UserError(f'{error.filename} cannot be read ({error.strerror}): download it again') from error
    except UserError:
        raise
    except Exception as error:  # tokenizers raises no narrower one
        raise UserError(f'{file} is no tokenizer ({error}): download it again') from error
    lowers = read_if_present(transformer_config(Path(folder))).get('do_lower_case')
    if lowers and not getattr(tokenizer.normalizer, 'lowercase', False):
        steps = normalizers.Lowercase(), tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([*filter(None, steps)])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    _check(tokenizer, file, config)
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return WordPiece((tokenizer.to_str(),)) if _is_of_a_bert(tokenizer) else PublishedPieces((tokenizer.to_str(),))


def _check(tokenizer: tokenizers.Tokenizer, file: Path, config: TokenizerConfig) -> None:
    """Raises a UserError unless a tokenizer has a piece for each id, and the start, the end and the padding stated."""
    size = tokenizer.get_vocab_size()
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= size:
        problem = f'{size} distinct pieces with ids up to {last}, so that some ids have no piece'
        raise UserError(f'{file} has {problem}: give another tokenizer')
    ends = tokenizer.encode('').ids
    if len(ends) != 2:  # the start and the end
        raise UserError(f'{file} adds no start and end to a text: give the tokenizer of a BERT')
    types = tokenizer.encode('a').type_ids
    if any(types):
        raise UserError(f'{file} gives tokens the types {types}, but jitm gives all the type 0: give another tokenizer')
    if 'attention_mask' not in config.model_input_names:
        raise UserError(f"{file} is without a mask by 'model_input_names' of tokenizer_config.json: add attention_mask")
    expected = dict(zip(('cls_token', 'sep_token'), ends, strict=True))
    if read_if_present(file.with_name('config.json')).get('model_type') in PADDED:
        expected['pad_token'] = 1
    for key, number in expected.items():
        token = _text_of(getattr(config, key))
        if token is not None and tokenizer.token_to_id(token) != number:
            problem = f"'{tokenizer.id_to_token(number)}' where tokenizer_config.json states the {key} '{token}'"
            raise UserError(f'{file} has {problem}: make them agree')


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Returns what the `tokenizer_config.json` of a folder states, and the files that transformers reads with it.

    Without `added_tokens_decoder`, `special_tokens_map.json` has precedence. Without `tokenizer_class`, the class is
    the one that `config.json` states or that belongs to its `model_type`.

    Raises:
      UserError: If a file is damaged, or has a key or a value that jitm does not know.
    """
    path = folder / 'tokenizer_config.json'
    model = read_if_present(folder / 'config.json')
    name = model.get('tokenizer_class') or CLASS_OF.get(str(model.get('model_type')))
    content = {'tokenizer_class': name} | read_if_present(path)
    if 'added_tokens_decoder' not in content:
        content |= read_if_present(path.with_name('special_tokens_map.json'))
    return read_declared(TokenizerConfig, path, content)


def transformer_config(folder: Path) -> Path:
    """Returns the path of the config of a `Transformer` of sentence-transformers, which may not exist."""
    files = [folder / f'sentence_{kind}_config.json' for kind in KINDS]
    return next((file for file in files if file.is_file()), files[0])


def _add_tokens(tokenizer: tokenizers.Tokenizer, file: Path, config: TokenizerConfig) -> None:
    """Adds the tokens that `added_tokens.json` and `tokenizer_config.json` list and the tokenizer lacks."""
    listing = read_if_present(file.with_name('added_tokens.json'))
    tokens = {number: {'content': text} for text, number in listing.items()}
    tokens |= {int(number): fields for number, fields in (config.added_tokens_decoder or {}).items()}
    for number, fields in sorted(tokens.items()):
        token = tokenizers.AddedToken(**fields)
        decoder = tokenizer.get_added_tokens_decoder()
        if number not in decoder and not (token.special and tokenizer.token_to_id(token.content) == number):
            tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != number:
            problem = f'the id {tokenizer.token_to_id(token.content)}, but it is added as {number}'
            raise UserError(f"{file} gives the token '{token.content}' {problem}: download the tokenizer again")


def _text_of(token: str | dict | None) -> str | None:
    """Returns the text of a special token, which some files state with its properties."""
    return token.get('content') if isinstance(token, dict) else token


def _is_of_a_bert(tokenizer: tokenizers.Tokenizer) -> bool:
    """Returns whether a tokenizer is the one that `WordPiece.of` makes of its pieces."""
    words = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    if words[0] != SPECIAL_PIECES[0] or not {*SPECIAL_PIECES} <= {*words}:
        return False
    ours, theirs = (parse_json(text) for text in (*WordPiece.of(words).definition, tokenizer.to_str()))
    return all(ours[key] == theirs[key] for key in OF_A_BERT)


def _of_json(file: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns a tokenizer as it is; a UserError if `tokenizer_config.json`, which has precedence, states another."""
    tokenizer = tokenizers.Tokenizer.from_str(file.read_text(encoding='utf-8'))
    content = parse_json(tokenizer.to_str())
    required = {part: {'direction': 'Right'} for part in ('truncation', 'padding') if content[part]}
    if config.is_of(OF_WORDS):
        expected = parse_json(_word_pieces(tokenizer.get_vocab(with_added_tokens=False), config).to_str())
        required |= {part: expected[part] for part in OF_A_BERT}
    if config.is_of(OF_BYTES):
        splits = {'type': 'ByteLevel', 'add_prefix_space': bool(config.add_prefix_space), 'use_regex': True}
        required |= {'normalizer': {'type': None}, 'pre_tokenizer': splits}
    for part, values in required.items():
        for key, value in values.items():
            actual = (content[part] or {}).get(key)
            if actual != value:
                problem = f"'{part}.{key}' {actual!r}, but its tokenizer_class, {config.tokenizer_class}, and "
                problem += f'tokenizer_config.json stand for {value!r}'
                raise UserError(f'{file} has {problem}: make them agree')
    return tokenizer


def _check_class(file: Path, config: TokenizerConfig, classes: tuple[str, ...]) -> None:
    """Raises a UserError if pieces without a `tokenizer.json` are those of another class."""
    if not config.is_of((*classes, '')):
        problem = f"and its tokenizer_config.json states the tokenizer_class '{config.tokenizer_class}'"
        raise UserError(f'{file} has the pieces of a {classes[0]}, {problem}: add its tokenizer.json')


def _of_words(file: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a BERT or an MPNet; that of MPNet has other special pieces."""
    _check_class(file, config, OF_WORDS)
    words = split_lines(file.read_text(encoding='utf-8'))
    tokenizer = _word_pieces({word: number for number, word in enumerate(words)}, config)
    ends = zip((config.cls_token, config.sep_token), (START, END) if words[0] == START else (CLS, SEP), strict=True)
    start, end = (_text_of(token) or default for token, default in ends)
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
    return tokenizer


def _word_pieces(ids: dict[str, int], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns the tokenizer of word pieces, but for the start and the end."""
    return word_pieces(
        ids,
        _text_of(config.unk_token) or UNK,
        lowercase=config.do_lower_case is not False,
        strip_accents=config.strip_accents,
        handle_chinese_chars=config.tokenize_chinese_chars,
    )


def _of_bytes(file: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a RoBERTa, whose pieces have bytes and their blanks, and capitals."""
    _check_class(file, config, OF_BYTES)
    ids = parse_json(read_bytes(file))
    merges = split_lines(file.with_name('merges.txt').read_text(encoding='utf-8'))
    pairs = [tuple(line.split(' ')) for line in merges if line and not line.startswith('#version')]
    tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.add_prefix_space))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _between(ids[START], ids[END])
    return tokenizer


def _of_sentencepiece(file: Path, config: TokenizerConfig) -> tokenizers.Tokenizer:
    """Returns the tokenizer of an XLM-R, in which special pieces take the place of the first three of the file."""
    _check_class(file, config, OF_SENTENCES)
    tokenizer = from_model(read_bytes(file))
    _, _, _, *pieces = parse_json(tokenizer.to_str())['model']['vocab']
    special = [(piece, 0.0) for piece in SPECIAL]
    pieces = [*special, *map(tuple, pieces), (MASK, 0.0)]
    tokenizer.model = models.Unigram(pieces, special.index((UNKNOWN, 0.0)), byte_fallback=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), tokenizer.pre_tokenizer])
    tokenizer.post_processor = _between(0, special.index((END, 0.0)))
    return tokenizer


def _between(start: int, end: int) -> processors.PostProcessor:
    """Returns the step that puts a text between the special pieces with these ids."""
    return processors.TemplateProcessing(f'{START} $A {END}', special_tokens=[(START, start), (END, end)])


READERS = {  # file -> reads it, given what `tokenizer_config.json` states
    'tokenizer.json': _of_json,
    'vocab.txt': _of_words,
    'vocab.json': _of_bytes,
    'sentencepiece.bpe.model': _of_sentencepiece,
}
