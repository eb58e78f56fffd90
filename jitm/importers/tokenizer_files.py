"""What folders of transformers state about a tokenizer beside its pieces."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from jitm.config.foreign import declared, neutral, read_declared, read_if_present
from jitm.data.text import published
from jitm.data.text.pieces import BPE, Pieces
from jitm.errors import UserError
from jitm.files import parse_json, read_bytes

CONFIG = 'tokenizer_config.json'
SPECIAL = 'special_tokens_map.json'
ADDED = 'added_tokens.json'
VOCABULARY = 'vocab.json'
WHOLE = 'tokenizer.json'
REMEDY = 'give another model, or its tokenizer by --vocabulary'
MASK = 'attention_mask'
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SPLITS = _WORDS, rf'<\|startoftext\|>|<\|endoftext\|>|{_WORDS}'  # versions 4 and 5 of transformers
_STEPS = [{'type': 'NFC'}, {'type': 'Replace', 'pattern': {'Regex': r'\s+'}, 'content': ' '}, {'type': 'Lowercase'}]
_BYTES = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
Added = Iterator[tuple[Any, Any]]  # tokens, which may be objects, and their ids or None


@declared
class _Special:
    remedy = REMEDY

    bos_token: Any = None
    eos_token: Any = None
    unk_token: Any = None
    sep_token: Any = None
    pad_token: Any = None
    cls_token: Any = None
    mask_token: Any = None
    additional_special_tokens: list | None = None
    extra_special_tokens: Any = None

    def tokens(self) -> Added:
        """Yields the tokens."""
        extra = self.extra_special_tokens or ()
        named = (getattr(self, key) for key in _Special.__dataclass_fields__ if key.endswith('_token'))
        more = extra.values() if isinstance(extra, dict) else extra
        for token in (*named, *(self.additional_special_tokens or ()), *more):
            if token is not None:
                yield token, None


@declared
class _Config(
    _Special,
    neutral(
        do_lower_case=True,
        add_prefix_space=False,
        add_bos_token=False,
        add_eos_token=True,
        padding_side='right',
        truncation_side='right',
        tokenize_chinese_chars=True,
        strip_accents=None,
        do_basic_tokenize=True,
        never_split=None,
    ),
):
    harmless = f"""{published.SHARED_HARMLESS}
        _commit_hash legacy spaces_between_special_tokens split_special_tokens tokenizer_class
        use_default_system_prompt
    """

    sp_model_kwargs: Literal[None, {}] = None
    model_max_length: float | None = None
    added_tokens_decoder: dict | None = None
    model_input_names: Sequence = ('input_ids', MASK)

    def tokens(self) -> Added:
        """Yields the tokens."""
        yield from super().tokens()
        for number, token in (self.added_tokens_decoder or {}).items():
            yield token, number


def _split(pattern: str) -> dict[str, Any]:
    words = {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': 'Removed', 'invert': True}
    return {'type': 'Sequence', 'pretokenizers': [words, _BYTES]}


@declared
class _Truncation(neutral(direction='Right')):
    harmless = 'max_length strategy stride'
    remedy = REMEDY


@declared
class _Padding(neutral(direction='Right')):
    harmless = 'strategy pad_to_multiple_of pad_id pad_type_id pad_token'
    remedy = REMEDY


@declared
class _Whole:
    harmless = 'version decoder'
    remedy = REMEDY

    model: dict
    normalizer: Literal[{'type': 'Sequence', 'normalizers': _STEPS}]
    pre_tokenizer: Literal[*map(_split, _SPLITS)]
    post_processor: dict
    added_tokens: list = ()
    truncation: _Truncation | None = None
    padding: _Padding | None = None


def check_tokenizer(
    folder: Path, pieces: Pieces, max_length: int, special: Collection[str] = (), masks: bool | None = None
) -> None:
    """Checks that a tokenizer splits captions as its pieces alone do.

    Args:
      folder: The folder with the tokenizer.
      pieces: The pieces that were read from it.
      max_length: The maximum number of ids of a caption.
      special: The pieces that may be no text; all if empty.
      masks: Whether the model ignores padding; None if padding changes nothing.

    Raises:
      UserError: If a file states another tokenizer, a smaller length, another mask, or tokens that are no pieces.
    """
    path = folder / CONFIG
    config = read_declared(_Config, path)
    length = config.model_max_length
    if length is not None and length < max_length:
        raise UserError(f"{path} has 'model_max_length' {length}, but the model reads {max_length} ids: {REMEDY}")
    if masks is not None and path.is_file() and masks != (MASK in config.model_input_names):
        problem = f"whose 'model_input_names' {'lacks' if masks else 'has'} {MASK} in {path}"
        raise UserError(f'{folder} has a tokenizer {problem}: {REMEDY}')
    named = read_declared(_Special, folder / SPECIAL)
    for file, tokens in (
        (path, config.tokens()),
        (folder / SPECIAL, named.tokens()),
        (folder / ADDED, read_if_present(folder / ADDED).items()),
    ):
        _check_added(file, tokens, pieces, special)


def check_byte_pairs(folder: Path, pieces: BPE, max_length: int) -> None:
    """Checks the tokenizer of a CLIP as `check_tokenizer` does, and the pieces in its other files."""
    check_tokenizer(folder, pieces, max_length, pieces.OMITTED)
    _check_added(folder / VOCABULARY, read_if_present(folder / VOCABULARY).items(), pieces)
    path = folder / WHOLE
    if path.is_file():
        _check_whole(path, pieces)


def _check_whole(path: Path, pieces: BPE) -> None:
    """Raises a UserError unless a `tokenizer.json` computes what transformers does for CLIP."""
    try:
        content = tokenizers.Tokenizer.from_str(read_bytes(path).decode()).to_str()  # with the defaults of its parts
    except Exception as error:  # tokenizers raises no narrower one
        raise UserError(f'{path} is no tokenizer ({error}): download it again') from error
    tokenizer = read_declared(_Whole, path, parse_json(content))
    start, end = ([piece, pieces.words.index(piece)] for piece in pieces.OMITTED)

    @declared
    class Ends(neutral(type='RobertaProcessing')):
        harmless = 'trim_offsets add_prefix_space'
        remedy = REMEDY

        cls: Literal[start]
        sep: Literal[end]

    read_declared(Ends, path, tokenizer.post_processor, 'post_processor.')
    _check_added(path, tokenizer.model['vocab'].items(), pieces)
    _check_added(path, ((token, None) for token in tokenizer.added_tokens), pieces, pieces.OMITTED)


def _check_added(path: Path, tokens: Iterable[tuple[Any, Any]], pieces: Pieces, special: Collection[str] = ()) -> None:
    """Raises a UserError unless the tokens of a file are pieces, which may be special, and have their ids."""
    ids = {piece: number for number, piece in enumerate(pieces.words)}
    for token, number in tokens:
        if isinstance(token, dict):
            number = token.get('id', number)
            token = token.get('content')
        if token not in (special or ids) or (number is not None and str(number) != str(ids[token])):
            raise UserError(f"{path} adds the token '{token}' to the pieces of the model, which is not read: {REMEDY}")
