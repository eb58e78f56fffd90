"""Metrics of perturbed captions: discrimination, and detection and correction of their mismatched words."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm import metrics
from jitm.data.pairs.kinds import RETRIEVED
from jitm.data.scenes import SceneSplit, holds
from jitm.data.scenes.parser import parse
from jitm.data.splits import Split, pad_texts
from jitm.data.text.word_level import Tokens, Vocabulary, join
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.inference.pairs import WORD_HEADS, PairScorer, WordPredictions, word_mask
from jitm.models.joint import has_heads
from jitm.pages import tables
from jitm.runs.run import Run

# Headers of tables.
CAPTIONS = 'perturbed captions', 'number', 'captions', 'pairwise', 'hardest'
TRUTH = 'truth in %', 'false', 'true', 'not parsed'
WORDS = 'words', 'detected: overall', 'matched', 'mismatched', 'balanced', 'corrected: replaced', 'all'
PERPLEXITY = 'pseudo-perplexity', 'mean over captions', 'over all words'
SECTIONS = {
    ', of the originals': 'pseudo_perplexity_captions',
    '': 'pseudo_perplexity',
    ', corrected': 'pseudo_perplexity_corrected',
}


def check_perplexity(run: Run) -> None:
    """Raises a UserError unless a run can estimate the likelihood of words; computes nothing."""
    if not has_heads(run.model, ('mlm',)):
        raise UserError(f"--perplexity needs a model with the head 'mlm', which {run.workdir} lacks; leave it out")
    if not _has_mask(run.vocabulary):
        raise UserError(
            f'--perplexity masks words, but the vocabulary of {run.workdir} has no mask token; leave it out, or use a '
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
      texts: The rows of the captions, int [N].
      sets: Name -> for each caption of the split its perturbed captions, see `sets.perturbed_captions`.
      perplexity: Also compute `metrics.pseudo_perplexity` of the captions that have a perturbed caption, and of the
        first perturbed caption of each, as it is and corrected; see `check_perplexity`.

    Returns:
      A dict for JSON: for each of the `sets` its size, `metrics.caption_discrimination`, on `scenes` the `truth` of the
      perturbed captions, and if the model has these heads `metrics.word_discrimination`, `metrics.word_correction` and
      pseudo-perplexities.

    Raises:
      UserError: If a set is empty, or a score is not finite.
    """
    originals = _Originals(scorer, split, texts, perplexity)
    evaluated = {}
    for name, perturbed in sets.items():
        evaluated[name] = originals.evaluate(name, [perturbed[text] for text in texts])
    return {'sets': evaluated}


class _Originals:
    """N captions of a split, to compare perturbed captions with; for the arguments see `evaluate`."""

    def __init__(self, scorer: PairScorer, split: Split, texts: np.ndarray, perplexity: bool):
        self.scorer = scorer
        self.split = split
        self.images = split.image_of_text[texts]
        self.predicts_words = has_heads(scorer.run.model, WORD_HEADS)
        self.captions = self._encode([split.captions[text] for text in texts])
        self.scores = scorer.score(self.images, self.captions)  # float32 [N], with the own images
        # Log-likelihoods of the words, float32 [N, L].
        self.likelihoods = scorer.log_likelihoods(self.images, self.captions) if perplexity else None

    def evaluate(self, name: str, sets: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Evaluates one set: the perturbed captions of each of the N captions."""
        owners = np.repeat(np.arange(len(sets)), list(map(len, sets)))
        if not len(owners):
            raise UserError(
                f"perturbation '{name}' finds nothing to change in {len(sets)} captions of {self.split.name}; "
                'leave it out'
            )
        texts = list(itertools.chain(*sets))
        perturbed = self._encode(texts)
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
        if self.predicts_words and len(comparable) and name not in RETRIEVED:
            report |= self._evaluate_words(perturbed.take(comparable), owners[comparable])
        if self.likelihoods is not None:
            report |= self._perplexities(perturbed, owners)
        return report

    def _encode(self, captions: Sequence[str]) -> Tokens:
        return join(list(map(self.scorer.run.vocabulary.encode, captions)))

    def _evaluate_words(self, perturbed: Tokens, owners: np.ndarray) -> dict[str, dict[str, float]]:
        """Evaluates the word predictions for perturbed captions as long as their originals."""
        predictions = self.scorer.predict_words(self.images[owners], perturbed)
        originals = _padded(self.captions, owners)
        unchanged = _padded(perturbed) == originals
        words = word_mask(perturbed.lengths, originals.shape[1])
        return {
            'word_discrimination': metrics.word_discrimination(predictions.match_prob, unchanged, words),
            'word_correction': metrics.word_correction(predictions.corrections, originals, ~unchanged, words),
        }

    def _perplexities(self, perturbed: Tokens, owners: np.ndarray) -> dict[str, dict[str, float]]:
        """Computes pseudo-perplexities of the captions and of the first perturbed caption of each."""
        used, first = np.unique(owners, return_index=True)
        scorer = self.scorer
        images = self.images[used]
        perturbed = perturbed.take(first)
        per_set = {'_captions': (self.captions.lengths[used], self.likelihoods[used])}
        per_set[''] = perturbed.lengths, scorer.log_likelihoods(images, perturbed)
        if self.predicts_words:
            ids = _padded(perturbed)
            words = word_mask(perturbed.lengths, ids.shape[1])
            rows = zip(correct(ids, scorer.predict_words(images, perturbed), words), perturbed.lengths, strict=True)
            corrected = join([row[:length] for row, length in rows])
            per_set['_corrected'] = perturbed.lengths, scorer.log_likelihoods(images, corrected)
        return {
            f'pseudo_perplexity{key}': metrics.pseudo_perplexity(values, word_mask(lengths, values.shape[1]))
            for key, (lengths, values) in per_set.items()
        }


def truth(captions: Sequence[str], images: Sequence[int], split: SceneSplit) -> dict[str, float]:
    """Returns how many captions are `false` (true negatives), `true`, or not in the grammar of `scenes`, in percent.

    Args:
      captions: N captions.
      images: The image of each, int [N].
      split: The scenes.
    """
    statements = list(map(parse, captions))
    unparsed = np.mean([statement is None for statement in statements])
    pairs = zip(statements, images, strict=True)
    true = np.mean([statement is not None and holds(statement, split.graphs[image]) for statement, image in pairs])
    shares = {'false': 1 - true - unparsed, 'true': true, 'not_parsed': unparsed}
    return {name: 100 * float(share) for name, share in shares.items()}


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


def table(report: Mapping[str, Any]) -> str:
    """Returns the metrics of `evaluate` as Markdown tables."""
    rows_of = {header: [] for header in (CAPTIONS, TRUTH, WORDS, PERPLEXITY)}
    for name, row in report['sets'].items():
        counts = [f'{row["perturbed"]:,}', f'{row["captions"]:,}']
        rows_of[CAPTIONS].append([name, *counts, *_numbers(row, 'caption_discrimination')])
        if 'truth' in row:
            rows_of[TRUTH].append([name, *_numbers(row, 'truth')])
        if 'word_discrimination' in row:
            rows_of[WORDS].append([name, *_numbers(row, 'word_discrimination'), *_numbers(row, 'word_correction')])
        for label, key in SECTIONS.items():
            if key in row:
                rows_of[PERPLEXITY].append([name + label, *_numbers(row, key)])
    return '\n\n'.join(tables.table(header, rows) for header, rows in rows_of.items() if rows)


def _numbers(row: Mapping[str, Any], name: str) -> list[str]:
    return [f'{value:.1f}' for value in row[name].values()]
