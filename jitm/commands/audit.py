"""`jitm audit`, see `usage.audit`."""

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
