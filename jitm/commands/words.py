"""`jitm words`, see `usage.words`."""

import functools
import json

import numpy as np
from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.data.pairs.kinds import GENERATED, RETRIEVED
from jitm.errors import UserError, require
from jitm.evaluation.discrimination.measures import check_perplexity, evaluate, table
from jitm.evaluation.discrimination.sets import check_kinds, perturbed_captions
from jitm.evaluation.explain import check_examples, describe_captions
from jitm.evaluation.protocol import describe_measurement
from jitm.inference.pairs import PairScorer
from jitm.metrics import evenly_spaced
from jitm.pages.pictures import pixels_of
from jitm.report import explanations
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import describe_runs, read_split
from jitm.synthesis.trained import load_generator

PERTURBED = 'perturbed.jsonl'


def _check(values: flags.FlagValues) -> None:
    """Raises a UserError for flags that do not fit together."""
    check_kinds(values.perturbations)
    nouns = 'noun' in values.perturbations
    shared.check_read(values, "the perturbation 'noun'", nouns, 'min_count', 'concreteness')
    retrieved = [kind for kind in values.perturbations if kind in RETRIEVED]
    if values.save_perturbed and retrieved:
        raise UserError(
            f'--save_perturbed writes negatives to train with, but a caption of kind {retrieved[0]} may be true; leave '
            f'{retrieved[0]} out of --perturbations'
        )
    if values.scene_graphs and set(values.perturbations) == {'swap'}:
        remedy = 'leave it out, or add another to --perturbations'
        raise UserError(f"--scene_graphs is not read by the perturbation 'swap'; {remedy}")
    if values.generator and GENERATED not in values.perturbations:
        remedy = 'add it to --perturbations, or leave --generator out'
        raise UserError(f"--generator makes the perturbation 'generated'; {remedy}")


def main(values: flags.FlagValues) -> None:
    """Prints the tables and writes the report."""
    _check(values)
    folder = loading.evaluation_folder(values, values.workdir)
    written = ['words.json']
    if values.show:
        written.append('words.html')
    if values.save_perturbed:
        written.append(PERTURBED)
    folder.check(written)
    run = loading.load_run(values)
    if values.perplexity:
        check_perplexity(run)
    if values.show:
        require('jinja2', extra='report')
        check_examples(run)
    generator = None
    if values.generator:
        generator = load_generator(values.generator)
    elif GENERATED in values.perturbations:
        generator = load_generator(values.workdir, values.step, values.member)
    split = read_split([run, generator.run] if generator else [run], values.split, values.data_root)
    count = min(values.texts or split.num_texts, split.num_texts)
    texts = np.array(evenly_spaced(count, split.num_texts))
    options = loading.scoring_options(values)
    scorer = PairScorer(run, split, options, report=ProgressPrinter())
    chosen = {name: values[name].value for name in ('seed', 'max_per_caption', 'min_count', 'concreteness')}
    sources = {'graphs': values.scene_graphs, 'generator': generator, 'scorer': scorer}
    sets = perturbed_captions(split, texts, values.perturbations, **sources, **chosen)
    report = evaluate(scorer, split, texts, sets, perplexity=values.perplexity)
    details = {
        'texts': count,
        **chosen,
        'scene_graphs': values.scene_graphs,
        'token_positions': 'special tokens left out',
        'perplexity': "pseudo-perplexity by the model's own head mlm; one perturbed caption of each caption",
        'generated_by': describe_runs([generator.run])[0] if generator else None,
        'generator': describe_runs([generator.generator])[0] if generator else None,
    }
    report['protocol'] = describe_measurement([run], split, options, 'the caption', details)
    folder.write('words.json', json.dumps(report, indent=2) + '\n')
    if values.show:
        examples = describe_captions(scorer, split, texts, sets, values.show)
        shown = {'data': split.name, 'workdir': str(run.workdir), 'step': run.step, 'pairs': examples}
        folder.write('words.html', explanations.page(shown, functools.partial(pixels_of, split)))
        print(explanations.lines(examples))
    print(f'{split.name}: {count} of {split.num_texts} captions; ties {report["protocol"]["ties"]}')
    print(f'{run.workdir}, step {run.step}, {run.member}')
    print(table(report))
    if values.save_perturbed:
        lines = []  # as `read_perturbed` reads them
        for text in texts:
            negatives = []
            for captions in sets.values():
                negatives += captions[text]
            line = {'caption': split.captions[text], 'perturbed': negatives}
            lines.append(json.dumps(line, ensure_ascii=False) + '\n')
        folder.write(PERTURBED, ''.join(lines))
    print(f'written to {folder.path}: {", ".join(written)}')
