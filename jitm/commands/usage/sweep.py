r"""Train a config with several values of its keys, one run after the other, and compare them.

    jitm sweep --config demo --workdir runs/margins --seeds 0,1 \
        --sweep terms.ranking.margin=0.1,0.2,0.3 --config.epochs=10

Runs that are finished are skipped, a stopped one resumes: the same command continues a stopped sweep.
"""

from jitm.commands import flags as shared

REQUIRED = ('config', 'workdir')
FLAGS = {
    **shared.common('config'),
    'workdir': shared.path('Folder of the run directories, one for each combination of values and seed.'),
    'sweep': shared.texts('KEY=VALUE,VALUE,...; repeat the flag for the product of several keys.', []),
    'seeds': shared.words("Seeds of each combination; the config's seed if not given.", []),
    **shared.common('accept_changed_code', 'compilation_cache'),
}
