"""Average the weights of runs of one model: WiSE-FT and model soups.

    jitm average runs/clip_b32 runs/clip_b32_f30k --weights 0.5,0.5 --out runs/clip_b32_wise
    jitm average runs/seed0 runs/seed1 runs/seed2 --out runs/soup
    jitm average runs/seed0 runs/seed1 runs/seed2 --greedy --split dev --out runs/greedy

The best checkpoint of each run is averaged, or that of `--step` and `--member`, adapters merged, with equal weights by
default. The result is a run directory, which every command reads, with the config and the data of the last run.
"""

from jitm.commands import flags as shared

ARGUMENTS = 'RUN...'
REQUIRED = ('out',)
RULES = shared.Rules(
    needs={'split': 'greedy', 'data_root': 'greedy'},
    excludes={'greedy': ('weights',)},  # whose runs have equal weights
)
FLAGS = {
    'out': shared.path('The run directory to make.'),
    'weights': shared.words('The weight of each run, separated by commas; equal if not given.', []),
    'greedy': shared.switch('Average only runs that raise rsum on the split, from the best one on.'),
    **shared.common('import', 'step', 'member', 'split', 'data_root', 'compilation_cache'),
}
