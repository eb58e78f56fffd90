"""A small UNITER with synthetic captions: TAGS and TAGS-DC (Fan et al., 2022)."""

import functools

import numpy as np

from jitm.losses import ranking, tokens
from jitm.models.uniter import UNITER
from jitm.synthesis.generator import Synthesis
from jitm.training.objective import RankingTerm, TokenTerm
from jitm.types import Batch, Masked, Texts
from tests.support.matchers import VOCABULARY, make_inputs
from tests.support.steps import ALWAYS

MODEL = UNITER(VOCABULARY, 'tiny', dropout=0.0, dtype='float32', heads=('mlm', 'discriminate', 'correct'))
PAIRS = 2
VIEWS = 3
LENGTH = 7
MASK = VOCABULARY - 1
SYNTHESIS = Synthesis(generator='target', num_samples=4, temperature=1.5, num_hard=5)
MEAN = ALWAYS | {'reduction': 'mean'}
HINGES = functools.partial(ranking.mean_of_hinges, margin=0.2)
DISCRIMINATION = functools.partial(tokens.word_discrimination, match_weight=0.11)
TERMS = {
    'ranking': RankingTerm(loss=HINGES, **MEAN),
    'synthetic': RankingTerm(loss=HINGES, **MEAN, rankings=('generated',)),
    'masked': TokenTerm(loss=tokens.masked_language_modeling, **MEAN, predictions='masked_language_modeling'),
    'discrimination': TokenTerm(loss=DISCRIMINATION, **MEAN, predictions='word_discrimination'),
    'correction': TokenTerm(loss=tokens.word_correction, **MEAN, predictions='word_correction'),
}


def make_batch():
    """Two pairs with masked captions, and the words of all captions of each image."""
    images, _ = make_inputs(PAIRS, padded=False)
    texts = Texts(np.zeros((PAIRS, LENGTH), np.int32), np.array([7, 4], np.int32))
    ids = np.random.default_rng(0).integers(1, MASK, (PAIRS, LENGTH))
    ids = np.where(texts.mask, ids, 0).astype(np.int32)
    labelled = np.zeros((PAIRS, VIEWS, LENGTH), bool)
    for place in ((0, 0, 1), (0, 0, 2), (0, 1, 4), (0, 2, 2), (1, 0, 1), (1, 1, 1), (1, 2, 1), (1, 2, 2)):
        labelled[place] = True
    masked = Masked(np.where(labelled, MASK, ids[:, None]).astype(np.int32), labelled)
    known = np.full((PAIRS, 8), -1, np.int32)
    for row, words in zip(known, ids, strict=True):
        distinct = np.unique(words[words > 0])
        row[: len(distinct)] = distinct
    drawn = {'masked': (masked, known)}
    return Batch(np.int32(0), images, texts.replace(ids=ids), np.array([4, 6], np.int32), drawn=drawn)
