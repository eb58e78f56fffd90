"""Explore the results of runs on a local page: queries, captions, attention, mismatched words and hard negatives.

    jitm explorer --workdir runs/scan --split test
    jitm explorer --workdir runs/a --workdir runs/b --split dev --photos photos

Two runs are shown side by side. The page is served to this machine only unless --host says otherwise;
it has no password.
"""

from jitm.commands import flags as shared

REQUIRED = ('workdir',)
FLAGS = {
    'workdir': shared.paths('A run directory; repeat the flag to compare runs side by side.'),
    **shared.common('split'),
    'photos': shared.path('A folder of pictures named by the image ids; by default from jitm encode.'),
    'encoder': shared.path('The run directory, weights or folder of a network that encoded the data, if it has moved.'),
    'host': shared.text('The address to bind to; 0.0.0.0 for all machines.', '127.0.0.1'),
    'port': shared.number('The port, or the next free one; 0 for any.', 8765, lower_bound=0, upper_bound=65535),
    **shared.common('data_root', 'compilation_cache'),
}
