"""Choose between captions that differ in a word or in their order: SugarCrepe, ARO, Winoground and BiVLC.

    jitm choices --workdir runs/clip --photos data/val2017 sugar-crepe/data/*.json
    jitm choices --workdir runs/demo --split test

Without files, the choices are those of `scenes`, made with known truth. Prints a table, with published numbers, and
writes choices.json and the scored choices as choices.jsonl.
"""

import json
from collections.abc import Sequence

from absl import flags

from jitm import parallel
from jitm.commands import flags as shared
from jitm.data import choices as choices_lib
from jitm.data.photos import load_folder
from jitm.data.scenes import SceneSplit
from jitm.errors import UserError, require
from jitm.evaluation import choices as evaluation
from jitm.evaluation import published
from jitm.evaluation.retrieval import evenly_spaced
from jitm.inference.options import ScoringOptions, precision_of
from jitm.inference.pair_scorer import PairScorer
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import describe_runs, load_run, read_split
from jitm.serving.inputs import transform_of

REPORT, LINES = 'choices.json', 'choices.jsonl'
SHOWN = 5  # missing images
REQUIRED = ('workdir',)
ARGUMENTS = '[FILE ...]'
FLAGS = {
    **shared.common('workdir', 'split'),
    'photos': shared.text('A folder with the photos, for a model that reads photos; images of --split if not given.'),
    'count': shared.count('The number of choices, evenly spaced; all if not given.'),
    'min_count': shared.count('The choices of a category at least; ARO takes 25 for attributes.', 1),
    **shared.common('step', 'member', 'data_root', 'output', 'dtype', 'precision', 'memory_mb', 'compilation_cache'),
}


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the tables, and writes the report and the choices."""
    parallel.use_all_cores()
    photos = shared.photos_folder(values)
    folder = shared.evaluation_folder(values, values.workdir)
    folder.check([REPORT, LINES])
    run = load_run(values.workdir, values.step, values.member)
    # The choices.
    choices, pictures = [], {}
    for file in words:
        read, embedded = choices_lib.read(file)
        choices += read
        pictures |= embedded
    # Their images.
    transform = None
    if photos or pictures:
        require('PIL.Image', extra='photos')
        if 'pixels' not in run.model.reads:
            raise UserError(f'{run.workdir} does not read photos: leave --photos out, and take images of --split')
        transform = transform_of(run)
    if photos:
        split = load_folder(photos, transform)
    else:
        split = None if pictures else read_split([run], values.split, values.data_root)
    if not words:
        if not isinstance(split, SceneSplit):
            raise UserError(f'{values.workdir} was not trained on scenes, which has choices of its own: give a file')
        choices = choices_lib.of_scenes(split, range(split.num_texts))
    choices = [choices[n] for n in evenly_spaced(min(values.count or len(choices), len(choices)), len(choices))]
    name = ', '.join(words) or split.name
    found = evaluation.find_images(choices, split, pictures, transform, name)
    # Their scores.
    options = ScoringOptions(values.dtype, values.memory_mb, values.precision)
    scorer = PairScorer(run, found.split, options, report=ProgressPrinter())
    scores = evaluation.score(scorer, found.choices, found.images)
    report = evaluation.evaluate(found.choices, scores, values.min_count)
    protocol = {
        'files': list(words),
        'split': None if photos else values.split,
        'photos': values.photos,
        'choices': len(choices),
        'excluded': len(choices) - len(found.choices),
        'ties': 'count against the match',
        'min_count': values.min_count,
        **precision_of(run, options),
        'runs': describe_runs([run]),
    }
    lines = [
        choices_lib.as_line(choice, scores=one.tolist(), **evaluation.decide(one, choice.matches))
        for choice, one in zip(found.choices, scores, strict=True)
    ]
    content = json.dumps({'groups': report, 'missing_images': found.missing, 'protocol': protocol}, indent=2) + '\n'
    for file_name, text in ((REPORT, content), (LINES, ''.join(lines))):
        with folder.replacing(file_name) as file:
            file.write(text.encode())
    print(f'{name}: {len(found.choices):,} of {len(choices):,} choices; ties {protocol["ties"]}')
    if found.missing:
        names = ', '.join(found.missing[:SHOWN]) + (', ...' if len(found.missing) > SHOWN else '')
        print(f'{protocol["excluded"]:,} choices are left out: {len(found.missing):,} images are missing ({names})')
    print(evaluation.table(report))
    if compared := evaluation.compare(report, published.load()):
        print(f'\npublished:\n\n{compared}')
    print(f'written to {folder.path}  ({REPORT}, {LINES})')
