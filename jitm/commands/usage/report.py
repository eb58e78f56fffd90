"""Compare runs: one page of a set of runs, or tables and figures of saved logs and similarities.

    jitm report runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1 --output report.html
    jitm report summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
    jitm report training runs/vsepp_s0 runs/vsepp_s1 --output training.png
    jitm report panels runs/vse0_s0/eval/dev/sims.npy runs/vsepp_s0/eval/dev/sims.npy --queries 4

Without a kind, the page: one HTML file with configs, recalls, curves, significance, and examples of
queries for which one group is right and another is not. Significance and examples need the
similarities that `jitm eval --workdir RUN --save_sims` writes. --rows also writes the numbers of each
run to a file of rows, one JSON object per run.

The kinds, with their inputs:

    summary RUN|ROWS...         best validation, or --split, averaged over seeds, with tests of the
                                differences, as Markdown, LaTeX or CSV (--format)
    training RUN...             loss, gradient, gap between scores, and recalls during training
    validation RUN...           R@1 of both directions and rsum by epoch
    panels SIMS...              retrieved images and captions of some queries, side by side

RUN is a run directory; runs that differ only in the seed are averaged. ROWS is a file of --rows. SIMS
is a file of `jitm eval --save_sims`; several files must have the same split.
"""

from jitm.commands import flags as shared
from jitm.pages.tables import FORMATS

ARGUMENTS = '[KIND] FILE...'
FLAGS = {
    'output': shared.path('The output file; report.html, KIND.png or panels.md if not given.'),
    'rows': shared.path('Page: also write the rows of the runs to this file; rows of other runs are kept.'),
    'photos': shared.path('Page: a folder of photographs named by image ids.'),
    'unfinished': shared.switch('Page: include runs that have not reached their last epoch.'),
    **shared.common('split'),
    'select': shared.words("Summary: patterns of the runs to keep, such as 'runs/vse0_*,runs/vsepp_*'.", []),
    'format': shared.choice([*FORMATS], 'Summary: the format of its tables; CSV is one table.', 'markdown'),
    'queries': shared.number(
        'Page: examples of each kind; panels: queries of each direction. Evenly spaced.', 4, lower_bound=0
    ),
    'images': shared.words('Panels: indices of the query images, such as 3,17.'),
    'texts': shared.words('Panels: indices of the query captions, such as 3,17.'),
    **shared.common('data_root'),
}
