"""How well a model tells captions from false sentences, and the words of these apart."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm import metrics
from jitm.analysis import tables
from jitm.data import scene_graphs
from jitm.data.pipeline import pad_texts
from jitm.data.splits import Split
from jitm.data.text import Tokens, Vocabulary, join
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError, did_you_mean
from jitm.evaluation.discrimination import perturbations
from jitm.evaluation.discrimination.reader import WORD_HEADS, Judged, PairReader, has_heads, inner_places
from jitm.runs.run import Run
from jitm.synthesis.trained import Writer, write_sentences

GENERATED = 'generated'
KINDS = ('swap', GENERATED, *perturbations.KINDS)


def check_kinds(kinds: Sequence[str]) -> None:
    """Raises a UserError unless there are some, all of `KINDS`."""
    if not kinds:
        raise UserError(f'--attacks is empty; give some of {", ".join(KINDS)}')
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--attacks has '{kind}'{did_you_mean(kind, KINDS)}")


def false_sentences(
    split: Split,
    texts: np.ndarray,
    kinds: Sequence[str],
    *,
    seed: int = 0,
    graphs: str = '',
    writer: Writer | None = None,
    **options: Any,
) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Makes sets of false sentences for captions of a split.

    Args:
      split: images and captions.
      texts: int [N], the captions whose sentences are wanted; those by rule are there for all.
      kinds: of `KINDS`; 'swap' gives one set for each kind of exchange.
      seed: of what is drawn.
      graphs: a file of scene graphs, see `scene_graphs.from_file`; '' for the gold ones of `scenes`, elsewhere rules,
        and for 'generated' those that the writer was trained with (none if it masks single words).
      writer: of the kind 'generated'.
      **options: of `perturbations.attack`, which makes those by rule.

    Returns:
      Name of a set -> for each of the T captions its false sentences, maybe none.

    Raises:
      UserError: a kind is unknown, or the split has no swaps or not what an attack takes.
    """
    check_kinds(kinds)
    find_graphs = functools.cache(lambda: _find_graphs(split, graphs))
    sets = {}
    for kind in dict.fromkeys(kinds):
        if kind == 'swap':
            sets |= {f'{name} swap': sentences for name, sentences in perturbations.swaps(split).items()}
        elif kind == GENERATED:
            sets[kind] = write_sentences(writer, split, texts, find_graphs() if graphs else None, seed=seed)
        else:
            sets[kind] = perturbations.attack(split, find_graphs(), kind, seed=seed, **options)
    return sets


def _find_graphs(split: Split, path: str) -> Sequence[scene_graphs.SentenceGraph]:
    if path:
        return scene_graphs.from_file(split, path=path)
    return scene_graphs.gold(split) if hasattr(split, 'sentence_graphs') else scene_graphs.rules(split)


def check_perplexity(run: Run) -> None:
    """Raises a UserError unless a run can tell how likely words are; computes nothing."""
    if not has_heads(run, ('mlm',)):
        raise UserError(
            f"--perplexity takes a model with the head 'mlm', which that of {run.workdir} lacks; leave it out"
        )
    if not _has_mask(run.vocabulary):
        raise UserError(
            f'--perplexity masks words, but the vocabulary of {run.workdir} has no mask; leave it out, or take a run '
            'that was trained with masked words'
        )


def _has_mask(vocabulary: Vocabulary | WordPiece) -> bool:
    try:
        return vocabulary.mask >= 0
    except KeyError:
        return False


def correct(ids: np.ndarray, judged: Judged, inner: np.ndarray) -> np.ndarray:
    """Keeps the words that fit and replaces the others (TAGS-DC, figure 3): int [N, L]; both ends are kept."""
    return np.where(inner & (judged.fits <= metrics.FITS), judged.corrections, ids)


def evaluate(
    reader: PairReader,
    split: Split,
    texts: np.ndarray,
    sets: Mapping[str, Sequence[Sequence[str]]],
    *,
    perplexity: bool = False,
) -> dict[str, Any]:
    """Evaluates a run on captions and their false sentences.

    A false sentence that reads as its caption, since the vocabulary lacks a word, is a tie. Words are judged where
    caption and false sentence have equally many and are read differently, the ends left out.

    Args:
      reader: of the split's images, with any model.
      split: images and captions.
      texts: int [N], the captions to take.
      sets: name -> for each caption of the split its false sentences, see `false_sentences`.
      perplexity: also `metrics.pseudo_perplexity`, of the captions that have a false sentence, and of the first of
        each, as it is and corrected; see `check_perplexity`.

    Returns:
      A dict for JSON: for each of the `sets` how many there are, `metrics.sentence_discrimination`, and if the model
      has the heads `metrics.word_discrimination`, `metrics.word_correction` and perplexities.

    Raises:
      UserError: if a set is empty, or a score is not finite.
    """
    vocabulary, images = reader.run.vocabulary, split.image_of_text[texts]
    captions = _encode([split.captions[t] for t in texts], vocabulary)
    own = reader.score(images, captions)
    judges = has_heads(reader.run, WORD_HEADS)
    likely = reader.log_likelihoods(images, captions) if perplexity else None
    described: dict[str, Any] = {}
    for name, sentences in sets.items():
        owners = np.repeat(np.arange(len(texts)), [len(sentences[t]) for t in texts])
        if not len(owners):
            raise UserError(
                f"attack '{name}' finds nothing to change in {len(texts)} captions of {split.name}; leave it out"
            )
        false = _encode([sentence for t in texts for sentence in sentences[t]], vocabulary)
        aligned, same = _compare(captions, false, owners)
        scores = reader.score(images[owners], false)
        scores[same] = own[owners[same]]
        if not (np.isfinite(scores).all() and np.isfinite(own).all()):
            raise UserError(f'scores on {split.name} are not finite: the model is broken')
        described[name] = row = {
            'captions': len(np.unique(owners)),
            'sentences': len(owners),
            'read_as_the_caption': int(same.sum()),
            'of_another_length': int(len(owners) - aligned.sum()),
            'sentence_discrimination': metrics.sentence_discrimination(own, scores, owners),
        }
        chosen = np.flatnonzero(aligned & ~same)
        if judges and len(chosen):
            row |= _judge_words(reader, images, captions, _take(false, chosen), owners[chosen])
        if perplexity:
            attacked, first = np.unique(owners, return_index=True)
            wrong, of = _take(false, first), images[attacked]
            row['pseudo_perplexity_captions'] = _perplexity(likely[attacked], captions.lengths[attacked])
            row['pseudo_perplexity'] = _perplexity(reader.log_likelihoods(of, wrong), wrong.lengths)
            if judges:
                corrected = reader.log_likelihoods(of, _corrected(reader, of, wrong))
                row['pseudo_perplexity_corrected'] = _perplexity(corrected, wrong.lengths)
    return {'sets': described}


def _encode(sentences: Sequence[str], vocabulary: Vocabulary | WordPiece) -> Tokens:
    return join([vocabulary.encode(sentence) for sentence in sentences])


def _take(tokens: Tokens, index: np.ndarray) -> Tokens:
    return join([tokens.ids[tokens.starts[n] : tokens.starts[n + 1]] for n in index])


def _padded(tokens: Tokens, index: np.ndarray | None = None) -> np.ndarray:
    """The ids of all texts, or of some: [N, L]."""
    index = np.arange(len(tokens.lengths)) if index is None else index
    return pad_texts(tokens, index, tokens.lengths[index].max()).ids


def _compare(captions: Tokens, false: Tokens, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which false sentences have as many words as their captions, and which have the same ones: bool [N] each."""
    aligned = false.lengths == captions.lengths[owners]
    same = np.zeros(len(owners), bool)
    some = np.flatnonzero(aligned)
    if len(some):
        same[some] = (_padded(false, some) == _padded(captions, owners[some])).all(axis=1)
    return aligned, same


def _judge_words(
    reader: PairReader, images: np.ndarray, captions: Tokens, false: Tokens, owners: np.ndarray
) -> dict[str, dict[str, float]]:
    judged, originals = reader.judge(images[owners], false), _padded(captions, owners)
    kept, inner = _padded(false) == originals, inner_places(false.lengths, originals.shape[1])
    return {
        'word_discrimination': metrics.word_discrimination(judged.fits, kept, inner),
        'word_correction': metrics.word_correction(judged.corrections, originals, ~kept, inner),
    }


def _corrected(reader: PairReader, images: np.ndarray, tokens: Tokens) -> Tokens:
    ids = _padded(tokens)
    ids = correct(ids, reader.judge(images, tokens), inner_places(tokens.lengths, ids.shape[1]))
    return join([row[:length] for row, length in zip(ids, tokens.lengths, strict=True)])


def _perplexity(found: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    return metrics.pseudo_perplexity(found, inner_places(lengths, found.shape[1]))


def table(report: Mapping[str, Any]) -> str:
    """The numbers of `evaluate` as Markdown tables."""
    header = ['false sentences', 'number', 'captions', 'pairwise', 'hardest']
    rows = []
    for name, row in report['sets'].items():
        rows.append([name, f'{row["sentences"]:,}', f'{row["captions"]:,}', *_numbers(row, 'sentence_discrimination')])
    told = [tables.table(header, rows)]
    words = {name: row for name, row in report['sets'].items() if 'word_discrimination' in row}
    if words:
        header = ['words', 'told apart: overall', 'that fit', 'that do not', 'balanced', 'corrected: replaced', 'all']
        rows = [
            [n, *_numbers(row, 'word_discrimination'), *_numbers(row, 'word_correction')] for n, row in words.items()
        ]
        told.append(tables.table(header, rows))
    likely = [
        [f'{name}{of}', *_numbers(row, f'pseudo_perplexity{key}')]
        for name, row in report['sets'].items()
        for of, key in ((', its captions', '_captions'), ('', ''), (', corrected', '_corrected'))
        if f'pseudo_perplexity{key}' in row
    ]
    if likely:
        told.append(tables.table(['pseudo-perplexity', 'mean over sentences', 'over all words'], likely))
    return '\n\n'.join(told)


def _numbers(row: Mapping[str, Any], name: str) -> list[str]:
    return [f'{value:.1f}' for value in row[name].values()]
