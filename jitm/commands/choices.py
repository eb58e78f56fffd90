"""`jitm choices`, see `usage.choices`."""

import collections
import dataclasses
import json
from collections.abc import Sequence

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.data.images.photos import load_folder
from jitm.data.pairs import compositionality as choices_lib
from jitm.data.scenes import SceneSplit
from jitm.data.text.token_vectors import TokenVectors
from jitm.data.text.vocabularies import tokenize_split
from jitm.encoders.text_network import of_run
from jitm.errors import UserError
from jitm.evaluation import compositional as evaluation
from jitm.evaluation import published
from jitm.evaluation.protocol import describe_measurement
from jitm.inference.pairs import PairScorer
from jitm.metrics import evenly_spaced
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import read_split
from jitm.serving.images import transform_of

REPORT = 'choices.json'
LINES = 'choices.jsonl'
SHOWN = 5  # missing images


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Prints the tables, and writes the report and the choices."""
    photos = shared.photos_folder(values)
    run = loading.load_run(values)
    text_network = of_run(run, values.encoder)

    # The choices and their images.
    choices = []
    pictures = {}
    for listed, embedded in map(choices_lib.read, words):
        choices += listed
        pictures |= embedded
    if (photos or pictures) and 'pixels' not in run.model.reads:
        raise UserError(f'{run.workdir} does not read photos: leave --photos out, and use images of --split')
    transform = transform_of(run) if photos or pictures else None
    embedded_only = bool(choices) and all(pictures.keys() >= {*choice.images} for choice in choices)
    read = None if photos or embedded_only else values.split
    files = [*words, values.photos] if photos else words
    folder = loading.evaluation_folder(values, values.workdir, split=read, files=files)
    folder.check([REPORT, LINES])
    if photos:
        split = load_folder(photos, transform)
    else:
        split = None if embedded_only else read_split([run], values.split, values.data_root)
    if not words and not isinstance(split, SceneSplit):
        raise UserError(f'{values.workdir} was not trained on scenes, which has choices of its own: give a file')
    choices = choices if words else choices_lib.of_scenes(split)
    total = len(choices)
    choices = [choices[n] for n in evenly_spaced(min(values.count or len(choices), len(choices)), len(choices))]
    name = ', '.join(words) or split.name
    split, found_choices, absent = evaluation.find_images(choices, split, pictures, transform, name)
    if text_network:
        tokens = text_network.add_vectors(tokenize_split(split.captions, run.vocabulary))
        vectors = TokenVectors(tokens.vectors, tokens.lengths, run.vocabulary)
        split = dataclasses.replace(split, token_vectors=vectors)
    # Their scores.
    options = loading.scoring_options(values)
    scores = evaluation.score(PairScorer(run, split, options, report=ProgressPrinter()), split, found_choices)
    report = evaluation.evaluate([choice for choice, _ in found_choices], scores, values.min_count)
    sizes = collections.Counter((choice.group, choice.category) for choice, _ in found_choices)
    small = [size for size in sizes.values() if size < values.min_count]
    counted = {
        'files': list(words),
        'split': read,
        'photos': values.photos,
        'total': total,
        'choices': len(choices),
        'excluded': len(choices) - len(found_choices),
        'missing_images': absent,
        'min_count': values.min_count,
        'small_categories': len(small),
    }
    protocol = describe_measurement([run], split, options, 'the match', counted)
    lines = [
        choices_lib.as_line(choice, scores=row.tolist()) for (choice, _), row in zip(found_choices, scores, strict=True)
    ]
    folder.write(REPORT, json.dumps({'results': report, 'protocol': protocol}, indent=2) + '\n')
    folder.write(LINES, ''.join(lines))
    print(f'{name}: {len(found_choices):,} of {total:,} choices; ties {protocol["ties"]}')
    if absent:
        names = ', '.join(absent[:SHOWN]) + (', ...' if len(absent) > SHOWN else '')
        count = f'{protocol["excluded"]:,} choices without all images'
        print(f'left out: {count}; missing images: {len(absent):,} ({names})')
    if small:
        print(f'categories below --min_count without a row: {len(small):,}, with {sum(small):,} choices')
    compared = evaluation.compare(report, published.load(), part=len(found_choices) < total)
    print(evaluation.table(report) + (f'\n\npublished:\n\n{compared}' if compared else ''))
    print(f'written to {folder.path}  ({REPORT}, {LINES})')
