"""Scene graphs of the captions of a split: parsed by rules, read from a file, or known (Fan et al., 2022, section 2.1).

A config names their source, a function of a split in this package: `dict(source='scene_graphs.rules')`.
"""

import functools
import importlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.scene_graphs.tag_rules import CaptionGraph, Reader, Span, Token
from jitm.data.splits import Split
from jitm.data.text.word_level import find_tokens
from jitm.errors import UserError, require
from jitm.files import parse_json, read_text

__all__ = ['CaptionGraph', 'Span', 'from_file', 'gold', 'parse', 'rules', 'spacy']

_KINDS = ('objects', 'attributes', 'relations')
_TREE = {'node': 'objects', 'attribute': 'attributes', 'relation': 'relations'}
_WORD = re.compile(r"\w+(?:[-.]\w+)*|'\w*|[^\w\s]")
# Tags of words that occur in captions and are missing or different in the tagger's lexicon.
_TAGS = {
    't-shirt': 'NN', 'bear': 'NN', 'tracks': 'NNS', 'sled': 'NN', 'left': 'JJ', 'front': 'NN', 'side': 'NN',
    'awning': 'NN', 'round': 'JJ', 'skiing': 'VBG', 'surfing': 'VBG', 'skating': 'VBG', 'snowboarding': 'VBG',
    'skateboarding': 'VBG', 'swimming': 'VBG', 'kayaking': 'VBG', 'sledding': 'VBG', 'biking': 'VBG', 'hiking': 'VBG',
}  # fmt: skip


@functools.cache
def _tagger() -> Callable[[list[str]], list[list[str]]]:
    require('textblob', extra='graphs')
    from textblob.en import lexicon, parser  # slow to import

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)  # textblob does not close the files it reads
        for part in (lexicon, lexicon.morphology, lexicon.context, lexicon.entities):
            part.load()
    return parser.find_tags


def parse(caption: str) -> CaptionGraph:
    """Parses the scene graph of a caption, by rules over the tags of TextBlob's tagger.

    Args:
      caption: The caption, not preprocessed; the result does not depend on upper and lower case.
    """
    matches = list(_WORD.finditer(caption))
    words = [match[0].lower() for match in matches]
    tags = (_TAGS.get(word, tag) for word, (_, tag) in zip(words, _tagger()(words), strict=True))
    spans = (match.span() for match in matches)
    return Reader([Token(*token) for token in zip(words, tags, spans, strict=True)]).read()


def rules(split: Split) -> tuple[CaptionGraph, ...]:
    """Parses every caption of a split with `parse`: T scene graphs."""
    return tuple(map(parse, split.captions))


def spacy(split: Split, *, model: str) -> tuple[CaptionGraph, ...]:
    """Parses every caption of a split by the rules of `parse`, over the tags of a spaCy model.

    Args:
      split: The split whose captions are parsed.
      model: The name or folder of an installed English pipeline with a tagger, such as `en_core_web_sm`.

    Returns:
      T scene graphs.

    Raises:
      UserError: If spaCy or the model is not installed.
    """
    try:
        nlp = importlib.import_module('spacy').load(model, exclude=('parser', 'ner', 'lemmatizer'))
    except (ImportError, OSError):
        raise UserError(
            f'scene graphs by spaCy require `pip install spacy` and `python -m spacy download {model}`; otherwise use '
            "source 'scene_graphs.rules'"
        ) from None
    graphs = []
    for document in nlp.pipe(split.captions):
        words = [word for word in document if not word.is_space]
        tokens = [Token(word.text.lower(), word.tag_, (word.idx, word.idx + len(word.text))) for word in words]
        graphs.append(Reader(tokens).read())
    return tuple(graphs)


def gold(split: Split) -> tuple[CaptionGraph, ...]:
    """Returns the gold scene graphs of a split of `scenes`.

    Raises:
      UserError: If the split has none.
    """
    graphs = getattr(split, 'caption_graphs', None)
    if graphs is None:
        raise UserError(f"{split.name} has no gold scene graphs; use source 'scene_graphs.rules'")
    return graphs


def from_file(split: Split, *, path: str) -> tuple[CaptionGraph, ...]:
    """Reads scene graphs of another parser, such as SPICE.

    The file is a JSON list with a record for each caption, in any order. A record has `caption` and one of two formats.
    The first has lists `objects`, `attributes` and `relations` of [start, stop] in characters, and optionally
    `described`, pairs [object, attribute] of indices from 0. The second is the format of TAGS: a `tree` whose `ids` are
    indices from 0 into `tokens` (word pieces, a continuation is marked `##` or `@@`); a phrase spans from its first to
    its last token.

    Args:
      split: The split whose captions are looked up, without leading and trailing blanks.
      path: The path of the file.

    Returns:
      T scene graphs.

    Raises:
      UserError: If the file is missing or damaged, or lacks a valid record of a caption.
    """
    text = read_text(path, 'give the path of scene graphs')
    try:
        records = {record['caption'].strip(): record for record in parse_json(text)}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is not a JSON list of records with a 'caption': write it again") from None
    graphs = []
    for row, caption in enumerate(split.captions):
        if caption.strip() not in records:
            raise UserError(f"{path} has no record for text {row} of {split.name}, '{caption}': add it")
        try:
            graphs.append(_graph(records[caption.strip()], caption))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise UserError(
                f"{path} has no spans within the caption, or not its tokens, for '{caption}': write it again"
            ) from None
    return tuple(graphs)


def _graph(record: Mapping[str, Any], caption: str) -> CaptionGraph:
    """Converts one record; any error means that it is invalid."""
    if 'tree' in record:
        pieces = [token.removeprefix('##').removeprefix('@@').removesuffix('@@') for token in record['tokens']]
        return CaptionGraph(**_phrases_of_tree(record['tree'], find_tokens(caption, pieces)))
    shift = len(caption) - len(caption.lstrip()) - (len(record['caption']) - len(record['caption'].lstrip()))
    spans = {}
    for kind in _KINDS:
        spans[kind] = tuple((start + shift, stop + shift) for start, stop in record[kind])
        if not all(0 <= start < stop <= len(caption) for start, stop in spans[kind]):
            raise ValueError
    described = tuple((thing, attribute) for thing, attribute in record.get('described', ()))
    pairs = np.ndindex(len(spans['objects']), len(spans['attributes']))
    if not {*described} <= {*pairs}:
        raise ValueError
    return CaptionGraph(**spans, described=described)


def _phrases_of_tree(tree: Mapping[str, Any], spans: Sequence[Span]) -> dict[str, tuple[Span, ...]]:
    phrases = {}
    for name, kind in _TREE.items():
        ids = [sorted(node['ids']) for node in tree[name] if node['ids']]
        if any(indices[0] < 0 for indices in ids):
            raise ValueError
        phrases[kind] = tuple((spans[indices[0]][0], spans[indices[-1]][1]) for indices in ids)
    return phrases
