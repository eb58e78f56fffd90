"""List the training pairs that are most likely mismatched.

    jitm audit --workdir runs/rcl --count 200
    jitm audit --workdir runs/rcl --photos photos

Writes audit.jsonl and, with Jinja2, the page audit.html to audit/ in the run directory. If the model was trained on the
same pairs, train it with a loss that is robust to noise (docs/noise.md).
"""

from jitm.commands import flags as shared

REQUIRED = ('workdir',)
FLAGS = {
    **shared.common('workdir'),
    'split': shared.text('The split to audit.', 'train'),
    'count': shared.count('The number of pairs to list.', 200),
    'rounds': shared.count('The number of comparisons of each pair, with other pairs each time.', 4),
    'photos': shared.path('A folder of pictures named by the image ids; by default from jitm encode.'),
    **shared.common('step', 'member', 'data_root', 'output', 'dtype', 'precision', 'compilation_cache'),
}
