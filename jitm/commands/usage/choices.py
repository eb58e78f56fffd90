"""Choose between captions that differ in a word or in their order: SugarCrepe, ARO, Winoground and BiVLC.

    jitm choices --workdir runs/clip --photos data/val2017 sugar-crepe/data/*.json
    jitm choices --workdir runs/demo --split test

Without files, the choices come from `scenes`, with known truth. Prints a table, with published numbers, and
writes choices.json and the scored choices as choices.jsonl.
"""

from jitm.commands import flags as shared

REQUIRED = ('workdir',)
ARGUMENTS = '[FILE ...]'
FLAGS = {
    **shared.common('workdir', 'split'),
    'photos': shared.path('A folder with the photos, for a model that reads photos; images of --split if not given.'),
    'count': shared.count('The number of choices, evenly spaced; all if not given.'),
    'encoder': shared.path('The run directory or folder of the text encoder of a head on tokens, if it has moved.'),
    'min_count': shared.count('The minimum number of choices in a category; 25 for the attributes of ARO.', 1),
    **shared.common('step', 'member', 'data_root', 'output', 'dtype', 'precision', 'memory_mb', 'compilation_cache'),
}
