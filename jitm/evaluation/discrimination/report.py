"""How well a model distinguishes captions from perturbed captions, finds their mismatched words and corrects them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm import metrics
from jitm.data.scenes import SceneSplit, holds
from jitm.data.scenes.parser import parse
from jitm.data.splits import Split, pad_texts
from jitm.data.text import Tokens, Vocabulary, join
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.evaluation import tables
from jitm.evaluation.discrimination.sets import RETRIEVED
from jitm.inference.pairs import WORD_HEADS, PairScorer, WordPredictions, word_mask
from jitm.models.joint import has_heads
from jitm.runs.run import Run

SECTIONS = (('of the originals', '_captions'), ('', ''), ('corrected', '_corrected'))  # of pseudo-perplexities


def check_perplexity(run: Run) -> None:
    """Raises a UserError unless a run can estimate the likelihood of words; computes nothing."""
    if not has_heads(run.model, ('mlm',)):
        raise UserError(
            f"--perplexity takes a model with the head 'mlm', which that of {run.workdir} lacks; leave it out"
        )
    if not _has_mask(run.vocabulary):
        raise UserError(
            f'--perplexity masks words, but the vocabulary of {run.workdir} has no mask token; leave it out, or take a '
            'run that was trained with masked words'
        )


def _has_mask(vocabulary: Vocabulary | WordPiece) -> bool:
    try:
        return vocabulary.mask >= 0
    except KeyError:
        return False


def correct(ids: np.ndarray, predictions: WordPredictions, words: np.ndarray) -> np.ndarray:
    """Replaces mismatched words by their predicted corrections (TAGS-DC: Fan et al., 2022, figure 3).

    Args:
      ids: int [N, L].
      predictions: The predictions for these captions, [N, L].
      words: bool [N, L], the token positions of words, see `word_mask`; the others are kept.

    Returns:
      int [N, L].
    """
    mismatched = words & (predictions.match_prob <= metrics.MATCH_THRESHOLD)
    return np.where(mismatched, predictions.corrections, ids)


def evaluate(
    scorer: PairScorer,
    split: Split,
    texts: np.ndarray,
    sets: Mapping[str, Sequence[Sequence[str]]],
    *,
    perplexity: bool = False,
) -> dict[str, Any]:
    """Evaluates a run on captions and their perturbed captions.

    A perturbed caption with the tokens of its original (the vocabulary lacks a word) is a tie. Words are evaluated for
    pairs of captions with equally many tokens that are not identical; special tokens are left out.

    Args:
      scorer: A scorer of the split's images, with any model.
      split: Images and captions.
      texts: The captions to take, int [N].
      sets: Name -> for each caption of the split its perturbed captions, see `sets.perturbed_captions`.
      perplexity: Also compute `metrics.pseudo_perplexity` of the captions that have a perturbed caption, and of the
        first perturbed caption of each, as it is and corrected; see `check_perplexity`.

    Returns:
      A dict for JSON: for each of the `sets` its size, `metrics.caption_discrimination`, on `scenes` the `truth` of the
      perturbed captions, and if the model has these heads `metrics.word_discrimination`, `metrics.word_correction` and
      pseudo-perplexities.

    Raises:
      UserError: if a set is empty, or a score is not finite.
    """
    originals = _Originals(scorer, split, texts, perplexity)
    return {'sets': {name: originals.evaluate(name, [perturbed[t] for t in texts]) for name, perturbed in sets.items()}}


class _Originals:
    """N captions of a split, to compare perturbed captions with; for the arguments see `evaluate`."""

    def __init__(self, scorer: PairScorer, split: Split, texts: np.ndarray, perplexity: bool):
        self.scorer, self.split, self.images = scorer, split, split.image_of_text[texts]
        self.captions = _encode([split.captions[t] for t in texts], scorer.run.vocabulary)
        self.scores = scorer.score(self.images, self.captions)  # float32 [N], with the own images
        self.likelihoods = None  # of the words, float32 [N, L]
        if perplexity:
            self.likelihoods = scorer.log_likelihoods(self.images, self.captions)

    @property
    def _predicts_words(self) -> bool:
        return has_heads(self.scorer.run.model, WORD_HEADS)

    def evaluate(self, name: str, sets: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Evaluates one set: the perturbed captions of each of the N captions."""
        owners = np.repeat(np.arange(len(sets)), list(map(len, sets)))
        if not len(owners):
            raise UserError(
                f"perturbation '{name}' finds nothing to change in {len(sets)} captions of {self.split.name}; "
                'leave it out'
            )
        texts = [caption for captions in sets for caption in captions]
        perturbed = _encode(texts, self.scorer.run.vocabulary)
        same_length, identical = _compare(self.captions, perturbed, owners)
        scores = self.scorer.score(self.images[owners], perturbed)
        scores[identical] = self.scores[owners[identical]]
        if not (np.isfinite(scores).all() and np.isfinite(self.scores).all()):
            raise UserError(f'scores on {self.split.name} are not finite: the model is broken')
        report = {
            'captions': len(np.unique(owners)),
            'perturbed': len(owners),
            'identical_tokens': int(identical.sum()),
            'different_length': int(len(owners) - same_length.sum()),
            'caption_discrimination': metrics.caption_discrimination(self.scores, scores, owners),
        }
        if isinstance(self.split, SceneSplit):
            report['truth'] = truth(texts, self.images[owners], self.split)
        comparable = np.flatnonzero(same_length & ~identical)
        if self._predicts_words and len(comparable) and name not in RETRIEVED:
            report |= self._evaluate_words(perturbed.take(comparable), owners[comparable])
        if self.likelihoods is not None:
            report |= self._perplexities(perturbed, owners)
        return report

    def _evaluate_words(self, perturbed: Tokens, owners: np.ndarray) -> dict[str, dict[str, float]]:
        """Evaluates the word predictions for perturbed captions as long as their originals."""
        predictions = self.scorer.predict_words(self.images[owners], perturbed)
        originals = _padded(self.captions, owners)
        kept, words = _padded(perturbed) == originals, word_mask(perturbed.lengths, originals.shape[1])
        return {
            'word_discrimination': metrics.word_discrimination(predictions.match_prob, kept, words),
            'word_correction': metrics.word_correction(predictions.corrections, originals, ~kept, words),
        }

    def _perplexities(self, perturbed: Tokens, owners: np.ndarray) -> dict[str, dict[str, float]]:
        """Computes pseudo-perplexities of the captions and of the first perturbed caption of each."""
        used, first = np.unique(owners, return_index=True)
        perturbed, images = perturbed.take(first), self.images[used]
        lengths = self.captions.lengths[used], perturbed.lengths
        perplexities = {
            'pseudo_perplexity_captions': _perplexity(self.likelihoods[used], lengths[0]),
            'pseudo_perplexity': _perplexity(self.scorer.log_likelihoods(images, perturbed), lengths[1]),
        }
        if self._predicts_words:
            corrected = self.scorer.log_likelihoods(images, _corrected(self.scorer, images, perturbed))
            perplexities['pseudo_perplexity_corrected'] = _perplexity(corrected, lengths[1])
        return perplexities


def truth(captions: Sequence[str], images: Sequence[int], split: SceneSplit) -> dict[str, float]:
    """Returns how many captions are `false` (true negatives), `true`, or not in the grammar of `scenes`, in percent.

    Args:
      captions: N captions.
      images: The image of each, int [N].
      split: The scenes.
    """
    statements = list(map(parse, captions))
    true = [
        statement is not None and holds(statement, split.graphs[image])
        for statement, image in zip(statements, images, strict=True)
    ]
    others = np.mean([statement is None for statement in statements])
    shares = {'false': 1 - np.mean(true) - others, 'true': np.mean(true), 'not_parsed': others}
    return {name: 100 * float(share) for name, share in shares.items()}


def _encode(captions: Sequence[str], vocabulary: Vocabulary | WordPiece) -> Tokens:
    return join([vocabulary.encode(caption) for caption in captions])


def _padded(tokens: Tokens, index: np.ndarray | None = None) -> np.ndarray:
    """Returns the ids of all texts, or of some: int [N, L]."""
    index = np.arange(len(tokens.lengths)) if index is None else index
    return pad_texts(tokens, index, tokens.lengths[index].max()).ids


def _compare(captions: Tokens, perturbed: Tokens, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which perturbed captions have the length of their originals, and which the same ids: bool [N] each."""
    same_length = perturbed.lengths == captions.lengths[owners]
    identical = np.zeros(len(owners), bool)
    index = np.flatnonzero(same_length)
    if len(index):
        identical[index] = (_padded(perturbed, index) == _padded(captions, owners[index])).all(axis=1)
    return same_length, identical


def _corrected(scorer: PairScorer, images: np.ndarray, tokens: Tokens) -> Tokens:
    ids = _padded(tokens)
    ids = correct(ids, scorer.predict_words(images, tokens), word_mask(tokens.lengths, ids.shape[1]))
    return join([row[:length] for row, length in zip(ids, tokens.lengths, strict=True)])


def _perplexity(likelihoods: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    return metrics.pseudo_perplexity(likelihoods, word_mask(lengths, likelihoods.shape[1]))


def table(report: Mapping[str, Any]) -> str:
    """Returns the metrics of `evaluate` as Markdown tables."""
    sets = report['sets']
    header = ['perturbed captions', 'number', 'captions', 'pairwise', 'hardest']
    rows = [
        [name, f'{row["perturbed"]:,}', f'{row["captions"]:,}', *_numbers(row, 'caption_discrimination')]
        for name, row in sets.items()
    ]
    parts = [tables.table(header, rows)]
    rows = [[name, *_numbers(row, 'truth')] for name, row in sets.items() if 'truth' in row]
    if rows:
        parts.append(tables.table(['truth in %', 'false', 'true', 'not parsed'], rows))
    rows = [
        [name, *_numbers(row, 'word_discrimination'), *_numbers(row, 'word_correction')]
        for name, row in sets.items()
        if 'word_discrimination' in row
    ]
    if rows:
        header = ['words', 'detected: overall', 'matched', 'mismatched', 'balanced', 'corrected: replaced', 'all']
        parts.append(tables.table(header, rows))
    rows = [
        [', '.join(filter(None, (name, label))), *_numbers(row, f'pseudo_perplexity{key}')]
        for name, row in sets.items()
        for label, key in SECTIONS
        if f'pseudo_perplexity{key}' in row
    ]
    if rows:
        parts.append(tables.table(['pseudo-perplexity', 'mean over captions', 'over all words'], rows))
    return '\n\n'.join(parts)


def _numbers(row: Mapping[str, Any], name: str) -> list[str]:
    return [f'{value:.1f}' for value in row[name].values()]
