"""Mine the highest-scoring negatives of a split, for offline losses.

    jitm mine --workdir runs/stage1 --out candidates --top_h_texts 300 --top_h_images 60

Set the config key offline.path to the output folder to train with the mined negatives. A stopped
job resumes with the same command.
"""

from jitm.commands import flags as shared

REQUIRED = ('workdir', 'out')
FLAGS = {
    'workdir': shared.paths('A run directory; repeat the flag to mine with an ensemble.'),
    'out': shared.path('The output folder.'),
    'top_h_texts': shared.count('Captions mined for each image.', 300),
    'top_h_images': shared.count('Images mined for each caption.', 60),
    'split': shared.text('The split to mine.', 'train'),
    **shared.common('step', 'data_root', 'dtype', 'precision', 'memory_mb', 'compilation_cache', *shared.PROCESS_FLAGS),
}
