"""List the training pairs that are most likely mismatched.

    jitm audit --workdir runs/rcl --count 200
    jitm audit --workdir runs/rcl --photos photos

Writes audit.jsonl and, with Jinja2, the page audit.html to audit/ in the run directory. If the model was trained on the
same pairs, train it with a loss that is robust to noise (docs/noise.md).
"""

from pathlib import Path

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.errors import require
from jitm.evaluation import doubtful_pairs
from jitm.files.outputs import OutputFolder
from jitm.pages.pictures import are_small, pictures_of
from jitm.pages.render import Result, render
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import read_split

REQUIRED = ('workdir',)
FLAGS = {
    **shared.common('workdir'),
    'split': shared.text('The split to audit.', 'train'),
    'count': shared.count('The number of pairs to list.', 200),
    'rounds': shared.count('The number of comparisons of each pair, with other pairs each time.', 4),
    'photos': shared.path('A folder of pictures named by the image ids; by default from jitm encode.'),
    **shared.common('step', 'member', 'data_root', 'output', 'dtype', 'precision', 'compilation_cache'),
}


def main(values: flags.FlagValues) -> None:
    """Writes the pairs, and prints how many they are and the first ones."""
    require('jinja2', extra='report')
    run = loading.load_run(values)
    split = read_split([run], values.split, values.data_root, noisy=True)
    photos = loading.photos_of(values, split, run)
    folder = OutputFolder(Path(values.output or Path(values.workdir, 'audit')), doubtful_pairs.KIND)
    folder.check([doubtful_pairs.LINES, doubtful_pairs.PAGE])
    options = loading.scoring_options(values)
    doubt = doubtful_pairs.doubts(run, split, rounds=values.rounds, options=options, report=ProgressPrinter())
    pairs = doubtful_pairs.describe(doubt, split, values.count)
    summary = doubtful_pairs.summarize(pairs, split)
    pictures = pictures_of(split, {pair['image'] for pair in pairs}, photos)
    results = [
        Result(pair['image_id'], pair['doubt'], pictures.get(pair['image'], ''), note=pair['caption']) for pair in pairs
    ]
    page = render(
        'audit.html',
        title=f'Doubtful pairs of {split.name}',
        summary=summary,
        group=min(doubtful_pairs.PAIRS, split.num_texts),
        results=results,
        small=are_small(split),
        command=shared.repeated('audit', values),
    )
    doubtful_pairs.write(pairs, page, folder)
    for pair in pairs[:5]:
        print(f'{pair["doubt"]:7.3f}  {pair["image_id"]}  {pair["caption"]}')
    print(summary)
    print(f'written to {folder.path}  ({doubtful_pairs.LINES}, {doubtful_pairs.PAGE})')
