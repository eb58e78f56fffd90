"""What folders of transformers state about a tokenizer beside its pieces."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from jitm.config.foreign import declared, neutral, read_declared, read_if_present
from jitm.data.text.pieces import BPE, Pieces
from jitm.errors import UserError

CONFIG, SPECIAL, ADDED = 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json'
VOCABULARY, WHOLE = 'vocab.json', 'tokenizer.json'
REMEDY = 'give another model, or its tokenizer by --vocabulary'
_HARMLESS = """
    _commit_hash backend clean_up_tokenization_spaces errors from_slow is_local legacy local_files_only max_length
    merges_file model_input_names name_or_path pad_to_multiple_of pad_token_type_id processor_class
    spaces_between_special_tokens special_tokens_map_file split_special_tokens stride tokenizer_class tokenizer_file
    truncation_strategy use_default_system_prompt use_fast vocab_file
"""
HARMLESS = frozenset(_HARMLESS.split())
_HARMLESS_PARTS = """
    byte_fallback continuing_subword_prefix decoder dropout fuse_unk ignore_merges merges padding post_processor
    pre_tokenizer truncation type unk_token version
"""
HARMLESS_PARTS = frozenset(_HARMLESS_PARTS.split())  # keys of tokenizer.json
Added = Iterator[tuple[Any, Any]]  # tokens, which may be objects, and their ids or None


@declared
class _Special:
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
    sp_model_kwargs: Literal[None, {}] = None
    model_max_length: float | None = None
    added_tokens_decoder: dict | None = None

    def tokens(self) -> Added:
        """Yields the tokens."""
        yield from super().tokens()
        for number, token in (self.added_tokens_decoder or {}).items():
            yield token, number


@declared
class _Whole:
    model: dict
    normalizer: dict
    added_tokens: list = ()


@declared
class _Model:
    vocab: dict
    end_of_word_suffix: Literal['</w>']


def check_tokenizer(folder: Path, pieces: Pieces, max_length: int, special: Collection[str] = ()) -> None:
    """Checks that a tokenizer splits captions as its pieces alone do.

    Args:
      folder: The folder with the tokenizer.
      pieces: The pieces that were read from it.
      max_length: The maximum number of ids of a caption.
      special: The pieces that may be no text; all if empty.

    Raises:
      UserError: If a file states another tokenizer, a smaller length, or tokens that are no pieces.
    """
    path = folder / CONFIG
    stated = read_declared(_Config, path, harmless=HARMLESS, remedy=REMEDY)
    length = stated.model_max_length
    if length is not None and length < max_length:
        raise UserError(f"{path} has 'model_max_length' {length}, but the model reads {max_length} ids: {REMEDY}")
    named = read_declared(_Special, folder / SPECIAL, remedy=REMEDY)
    for file, tokens in (
        (path, stated.tokens()),
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
        whole = read_declared(_Whole, path, harmless=HARMLESS_PARTS, remedy=REMEDY)
        model = read_declared(_Model, path, whole.model, harmless=HARMLESS_PARTS, where='model.', remedy=REMEDY)
        parts = whole.normalizer.get('normalizers', [whole.normalizer])
        if {'type': 'Lowercase'} not in parts:
            raise UserError(f'{path} does not lower-case captions, as CLIP does: {REMEDY}')
        _check_added(path, model.vocab.items(), pieces)
        _check_added(path, ((token, None) for token in whole.added_tokens), pieces, pieces.OMITTED)


def _check_added(path: Path, tokens: Iterable[tuple[Any, Any]], pieces: Pieces, special: Collection[str] = ()) -> None:
    """Raises a UserError unless the tokens of a file are pieces, which may be special, and have their ids."""
    ids = {piece: number for number, piece in enumerate(pieces.words)}
    for token, number in tokens:
        if isinstance(token, dict):
            number = token.get('id', number)
            token = token.get('content')
        if token not in (special or ids) or (number is not None and str(number) != str(ids[token])):
            raise UserError(f"{path} adds the token '{token}' to the pieces of the model, which is not read: {REMEDY}")
