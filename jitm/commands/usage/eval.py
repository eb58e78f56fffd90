"""Evaluate a run on a split, or several runs as an ensemble.

    jitm eval --workdir runs/demo --split test
    jitm eval --workdir runs/a --workdir runs/b --split test --folds 5
    jitm eval --workdir runs/uniter --shortlist runs/vse --top_m 100 --split test
    jitm eval --workdir runs/blip --top_m 128 --add --split test

Prints R@1, R@5, R@10, median rank and rsum, and writes metrics.json. A stopped evaluation resumes
with the same command.
"""

from jitm.commands import flags as shared
from jitm.metrics import RECALLS_AT

REQUIRED = ('workdir',)
RULES = shared.Rules(
    needs={'shortlist': 'top_m', 'add': 'top_m', 'photos': 'explain', 'encoder': 'explain'},
    excludes={'top_m': ('save_sims', 'explain', 'eccv')},  # which need the score of every pair
)
FLAGS = {
    'workdir': shared.paths('A run directory; repeat the flag to evaluate an ensemble.'),
    **shared.common('split'),
    'folds': shared.count('Average over this many folds of the images.', 1),
    **shared.common('step'),
    'member': shared.words('The models of `members` to load and average; the validated one if not given.', []),
    **shared.common('data_root'),
    'shortlist': shared.paths(
        'A run that selects the pairs to score; repeat the flag for an ensemble. By default a BLIP selects its own.', []
    ),
    'top_m': shared.number('Candidates in the shortlist of a query.', lower_bound=max(RECALLS_AT)),
    'add': shared.switch('Re-rank by the sum of both scores, as BLIP does, not by the second one alone.'),
    'save_sims': shared.switch('Write sims.npy, float32 [images, captions], and image_of_text.npy.'),
    'save_vectors': shared.switch('Write vectors.npz; scores are inner products of the vectors.'),
    'compare': shared.switch('Print published results on the same images.'),
    'compare_systems': shared.words(
        'Print the published results of these systems only, parts of names: vse++,scan.', []
    ),
    'eccv': shared.switch('Also print the metrics of ECCV Caption and CxC, on COCO.'),
    'explain': shared.count('Show the attention, or the mismatched words, of this many captions.'),
    'photos': shared.path('Explain: a folder of pictures named by the image ids; by default from jitm encode.'),
    'encoder': shared.path(
        'Explain: the run directory or folder of the text encoder of a head on tokens, if it moved.'
    ),
    **shared.common('output', 'dtype', 'precision', 'memory_mb', 'compilation_cache'),
}
