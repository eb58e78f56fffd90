"""Scene graphs of the sentences of a split: found by rules, read from a file, or known (TAGS, paper 001, section 2.1).

A config names where they come from, such as `dict(source='scene_graphs.rules')`: a function here that takes a split.
"""

import functools
import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitm.data.scene_graphs.grammar import Token, read
from jitm.data.scene_graphs.graph import Relation, SentenceGraph, Span
from jitm.data.splits import Split
from jitm.data.text import find_tokens
from jitm.errors import UserError

__all__ = ['Relation', 'SentenceGraph', 'Span', 'from_file', 'gold', 'parse', 'rules', 'spacy']

_KINDS = ('objects', 'attributes', 'relations')
_TREE = {'node': 'objects', 'attribute': 'attributes', 'relation': 'relations'}
_WORD = re.compile(r"\w+(?:[-.]\w+)*|'\w*|[^\w\s]")
# What the tagger's lexicon does not say of the words of captions.
_TAGS = {
    't-shirt': 'NN', 'bear': 'NN', 'tracks': 'NNS', 'sled': 'NN', 'left': 'JJ', 'front': 'NN', 'side': 'NN',
    'awning': 'NN', 'round': 'JJ', 'skiing': 'VBG', 'surfing': 'VBG', 'skating': 'VBG', 'snowboarding': 'VBG',
    'skateboarding': 'VBG', 'swimming': 'VBG', 'kayaking': 'VBG', 'sledding': 'VBG', 'biking': 'VBG', 'hiking': 'VBG',
}  # fmt: skip


@functools.cache
def _tagger() -> Callable[[list[str]], list[list[str]]]:
    from textblob.en import lexicon, parser  # takes seconds, which only those who parse should wait

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)  # textblob does not close the files it reads
        for part in (lexicon, lexicon.morphology, lexicon.context, lexicon.entities):
            part.load()
    return parser.find_tags


def parse(sentence: str) -> SentenceGraph:
    """Finds the scene graph of a sentence, by rules over the tags of TextBlob's tagger.

    Args:
      sentence: as it was written; what is found does not depend on capitals.

    Returns:
      Its scene graph.
    """
    places = list(_WORD.finditer(sentence))
    words = [place[0].lower() for place in places]
    tags = (_TAGS.get(word, tag) for word, (_, tag) in zip(words, _tagger()(words), strict=True))
    return read([Token(*token) for token in zip(words, tags, (place.span() for place in places), strict=True)])


def rules(split: Split) -> tuple[SentenceGraph, ...]:
    """Parses every sentence of a split with `parse`: T scene graphs."""
    return tuple(map(parse, split.captions))


def spacy(split: Split, *, model: str) -> tuple[SentenceGraph, ...]:
    """Parses every sentence of a split by the rules of `parse`, over the tags of a spaCy model.

    Args:
      split: whose sentences.
      model: name or folder of an installed English pipeline with a tagger, such as `en_core_web_sm`.

    Returns:
      T scene graphs.

    Raises:
      UserError: spaCy or the model is not installed.
    """
    try:
        nlp = importlib.import_module('spacy').load(model, exclude=('parser', 'ner', 'lemmatizer'))
    except (ImportError, OSError):
        raise UserError(
            f'scene graphs by spaCy need `pip install spacy` and `python -m spacy download {model}`; without them take '
            "source 'scene_graphs.rules'"
        ) from None

    def tokens(doc) -> list[Token]:
        words = (word for word in doc if not word.is_space)
        return [Token(w.text.lower(), w.tag_, (w.idx, w.idx + len(w.text))) for w in words]

    return tuple(read(tokens(doc)) for doc in nlp.pipe(split.captions))


def gold(split: Split) -> tuple[SentenceGraph, ...]:
    """The true scene graphs of a split that has them, `scenes`.

    Raises:
      UserError: it has none.
    """
    graphs = getattr(split, 'sentence_graphs', None)
    if graphs is None:
        raise UserError(f"{split.name} has no gold scene graphs; take source 'scene_graphs.rules'")
    return graphs


def from_file(split: Split, *, path: str) -> tuple[SentenceGraph, ...]:
    """Reads scene graphs made elsewhere, such as by SPICE.

    The file is a JSON list with a record for each sentence, in any order: `caption`, and either lists `objects`,
    `attributes`, `relations` of [first character, one after the last], if wanted with `triples` [subject, relation,
    object] and `described` [object, attribute], which count in these lists from 0; or the `tree` of TAGS' records with
    the `tokens` (word pieces, a continuation marked `##` or `@@`) that its `ids` count, from 0. A phrase of `tree` is
    taken from its first to its last token.

    Args:
      split: whose sentences; blanks around them do not matter.
      path: the file.

    Returns:
      T scene graphs.

    Raises:
      UserError: the file is missing or damaged, or has no record, or an unusable one, for one of the sentences.
    """
    try:
        with open(path, encoding='utf-8') as file:
            records = {record['caption'].strip(): record for record in json.load(file)}
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of scene graphs.') from error
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is not a JSON list of records with a 'caption': write it again.") from None
    graphs = []
    for text, caption in enumerate(split.captions):
        if caption.strip() not in records:
            raise UserError(f"{path} has no record for text {text} of {split.name}, '{caption}': add it.")
        try:
            graphs.append(_graph(records[caption.strip()], caption))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise UserError(
                f"{path} has no spans within the sentence, or no tokens of it, for '{caption}': write it again."
            ) from None
    return tuple(graphs)


def _graph(record: Mapping[str, Any], caption: str) -> SentenceGraph:
    """One record; any error says that it is unusable."""
    if 'tree' in record:
        pieces = [token.removeprefix('##').removeprefix('@@').removesuffix('@@') for token in record['tokens']]
        return SentenceGraph(**_phrases_of_tree(record['tree'], find_tokens(caption, pieces)))
    shift = len(caption) - len(caption.lstrip()) - (len(record['caption']) - len(record['caption'].lstrip()))
    spans = {kind: tuple((start + shift, stop + shift) for start, stop in record[kind]) for kind in _KINDS}
    graph = SentenceGraph(
        **spans,
        triples=tuple(Relation(*triple) for triple in record.get('triples', ())),
        described=tuple((thing, attribute) for thing, attribute in record.get('described', ())),
    )
    within = all(0 <= start < stop <= len(caption) for kind in spans.values() for start, stop in kind)
    sizes = [len(graph.objects), len(graph.attributes), len(graph.relations)]
    ends = [(n, sizes[kind]) for triple in graph.triples for n, kind in zip(triple, (0, 2, 0), strict=True)]
    ends += [(n, size) for pair in graph.described for n, size in zip(pair, sizes[:2], strict=True)]
    if not within or not all(0 <= n < size for n, size in ends):
        raise ValueError
    return graph


def _phrases_of_tree(tree: Mapping[str, Any], spans: Sequence[Span]) -> dict[str, tuple[Span, ...]]:
    phrases = {kind: [node['ids'] for node in tree[name] if node['ids']] for name, kind in _TREE.items()}
    if any(position < 0 for ids in phrases.values() for places in ids for position in places):
        raise ValueError
    return {
        kind: tuple((spans[min(places)][0], spans[max(places)][1]) for places in ids) for kind, ids in phrases.items()
    }
