"""Tells captions from false sentences: `python -m jitm.words --workdir runs/x --split test --attacks noun,number`."""

import json
import sys
from pathlib import Path

import numpy as np
from absl import flags

from jitm.analysis import words
from jitm.commands import cli
from jitm.errors import UserError
from jitm.evaluation.discrimination.examples import check_examples, describe_sentences
from jitm.evaluation.discrimination.perturbations import MIN_COUNT, MOST
from jitm.evaluation.discrimination.reader import PairReader
from jitm.evaluation.discrimination.report import (
    GENERATED,
    KINDS,
    check_kinds,
    check_perplexity,
    evaluate,
    false_sentences,
    table,
)
from jitm.evaluation.scoring import DTYPES
from jitm.files import replacing
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import describe_runs, load_run, read_split
from jitm.synthesis.trained import Writer, load_writer

WORKDIR = flags.DEFINE_string('workdir', None, 'A run directory.')
ATTACKS = flags.DEFINE_list('attacks', None, f'What is false in the sentences, some of {", ".join(KINDS)}.')
GENERATOR = flags.DEFINE_string('generator', None, "The run that writes the attack 'generated'; else this one.")
SPLIT = flags.DEFINE_string('split', 'dev', 'The split to evaluate on.')
TEXTS = flags.DEFINE_integer('texts', None, 'So many captions, spread over the split; all if not given.', lower_bound=1)
MOST_FALSE = flags.DEFINE_integer('most', MOST, 'False sentences of a kind for one caption.', lower_bound=1)
SEED = flags.DEFINE_integer('seed', 0, 'Of which false sentences, if there are more.', lower_bound=0)
NOUNS = flags.DEFINE_integer('min_count', MIN_COUNT, 'How often the split has a noun that is exchanged.', lower_bound=1)
CONCRETENESS = flags.DEFINE_string('concreteness', '', 'A list of words with scores, to exchange concrete nouns only.')
SCENE_GRAPHS = flags.DEFINE_string('scene_graphs', '', 'JSON of the scene graphs, if not to be found by rules.')
PERPLEXITY = flags.DEFINE_boolean('perplexity', False, 'Also how likely the sentences are, by the head mlm.')
SHOW = flags.DEFINE_integer('show', None, 'Also show the words of so many sentences of each set.', lower_bound=1)
STEP = flags.DEFINE_integer('step', None, 'The checkpoint; the best by validation if not given.')
MEMBER = flags.DEFINE_string('member', None, 'The branch; the one that was validated if not given.')
DATA_ROOT = flags.DEFINE_string('data_root', None, 'The data folder, if it has moved since training.')
OUTPUT = flags.DEFINE_string('output', None, 'Folder of words.json; by default eval/SPLIT in the run.')
DTYPE = flags.DEFINE_enum('dtype', None, list(DTYPES), 'Of the encodings that are scored, if not as in validation.')
MEMORY_MB = flags.DEFINE_integer('memory_mb', None, 'MiB for scoring, if not as in the config.', lower_bound=1)
flags.mark_flags_as_required(['workdir', 'attacks'])


def _load_writer() -> Writer | None:
    """Of the attack `generated`, if it is wanted.

    Raises:
      UserError: if it cannot write, or is given for nothing.
    """
    if GENERATED in ATTACKS.value:
        own = WORKDIR.value, STEP.value, MEMBER.value
        return load_writer(GENERATOR.value) if GENERATOR.value else load_writer(*own)
    if GENERATOR.value:
        raise UserError("--generator writes the attack 'generated'; add that to --attacks, or leave --generator out")
    return None


def main() -> None:
    """Prints the tables and writes the report."""
    check_kinds(ATTACKS.value)
    if SCENE_GRAPHS.value and set(ATTACKS.value) == {'swap'}:
        raise UserError("--scene_graphs is of no use to the attack 'swap'; leave it out, or add another to --attacks")
    run = load_run(WORKDIR.value, STEP.value, MEMBER.value)
    if PERPLEXITY.value:
        check_perplexity(run)
    if SHOW.value:
        check_examples(run)
    writer = _load_writer()
    split = read_split([run, writer.run] if writer else [run], SPLIT.value, DATA_ROOT.value)
    count = min(TEXTS.value or split.num_texts, split.num_texts)
    texts = np.arange(count) * split.num_texts // count
    options = {'seed': SEED.value, 'most': MOST_FALSE.value, 'min_count': NOUNS.value}
    given = {'graphs': SCENE_GRAPHS.value, 'concreteness': CONCRETENESS.value, 'writer': writer}
    sets = false_sentences(split, texts, ATTACKS.value, **given, **options)
    dtype = DTYPE.value or run.config['evaluation']['dtype']
    reader = PairReader(run, split, dtype=dtype, memory_mb=MEMORY_MB.value, report=ProgressPrinter())
    report = evaluate(reader, split, texts, sets, perplexity=PERPLEXITY.value)
    protocol = {
        'data': split.name,
        'dataset': split.dataset,
        'split': SPLIT.value,
        'texts': count,
        **options,
        'concreteness': CONCRETENESS.value,
        'scene_graphs': SCENE_GRAPHS.value,
        'ties': 'count against the caption',
        'places': 'ends left out',
        'perplexity': "pseudo-perplexity by the model's own head mlm; one false sentence of each caption",
        'dtype': dtype,
        'runs': describe_runs([run]),
        'writer': describe_runs([writer.run])[0] if writer else None,
        'generator': describe_runs([writer.generator])[0] if writer else None,
        'vocabulary_hash': [run.vocabulary.hash],
    }
    name = SPLIT.value + (f'_{MEMBER.value}' if MEMBER.value else '')
    folder = Path(OUTPUT.value) if OUTPUT.value else Path(WORKDIR.value) / 'eval' / name
    with replacing(folder / 'words.json') as file:
        file.write((json.dumps(report | {'protocol': protocol}, indent=2) + '\n').encode())
    if SHOW.value:
        examples = describe_sentences(reader, split, texts, sets, SHOW.value)
        shown = {'data': split.name, 'workdir': str(run.workdir), 'step': run.step, 'pairs': examples}
        with replacing(folder / 'words.html') as file:
            file.write(words.page(shown, split.pixels).encode())
        print('\n'.join(words.lines(pair, sys.stdout.isatty()) for pair in examples))
    print(f'{split.name}: {count} of {split.num_texts} texts; ties {protocol["ties"]}')
    print(f'{run.workdir}, step {run.step}, {run.member}')
    print(table(report))
    print(f'written to {folder / "words.json"}' + (' and words.html' if SHOW.value else ''))


if __name__ == '__main__':
    cli.run(main)
