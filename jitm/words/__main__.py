"""Tells captions from false sentences: `python -m jitm.words --workdir runs/x --split test --attacks noun,number`."""

import json
from pathlib import Path

import numpy as np
from absl import flags

from jitm import cli
from jitm.data.attacks import MIN_COUNT, MOST
from jitm.evaluation import load_run, read_split
from jitm.files import replacing
from jitm.scoring import DTYPES
from jitm.words.reader import PairReader
from jitm.words.report import KINDS, check_perplexity, evaluate, false_sentences, table

WORKDIR = flags.DEFINE_string('workdir', None, 'A run directory.')
ATTACKS = flags.DEFINE_list('attacks', None, f'What is false in the sentences, some of {", ".join(KINDS)}.')
SPLIT = flags.DEFINE_string('split', 'dev', 'The split to evaluate on.')
TEXTS = flags.DEFINE_integer('texts', None, 'So many captions, spread over the split; all if not given.', lower_bound=1)
MOST_FALSE = flags.DEFINE_integer('most', MOST, 'False sentences of a kind for one caption.', lower_bound=1)
SEED = flags.DEFINE_integer('seed', 0, 'Of which false sentences, if there are more.', lower_bound=0)
NOUNS = flags.DEFINE_integer('min_count', MIN_COUNT, 'How often the split has a noun that is exchanged.', lower_bound=1)
CONCRETENESS = flags.DEFINE_string('concreteness', '', 'A list of words with scores, to exchange concrete nouns only.')
SCENE_GRAPHS = flags.DEFINE_string('scene_graphs', '', 'JSON of the scene graphs, if not to be found by rules.')
PERPLEXITY = flags.DEFINE_boolean('perplexity', False, 'Also how likely the sentences are, by the head mlm.')
STEP = flags.DEFINE_integer('step', None, 'The checkpoint; the best by validation if not given.')
MEMBER = flags.DEFINE_string('member', None, 'The branch; the one that was validated if not given.')
DATA_ROOT = flags.DEFINE_string('data_root', None, 'The data folder, if it has moved since training.')
OUTPUT = flags.DEFINE_string('output', None, 'Folder of words.json; by default eval/SPLIT in the run.')
DTYPE = flags.DEFINE_enum('dtype', None, list(DTYPES), 'Of the encodings that are scored, if not as in validation.')
MEMORY_MB = flags.DEFINE_integer('memory_mb', None, 'MiB for scoring, if not as in the config.', lower_bound=1)
flags.mark_flags_as_required(['workdir', 'attacks'])


def main() -> None:
    """Prints the tables and writes the report."""
    run = load_run(WORKDIR.value, STEP.value, MEMBER.value)
    if PERPLEXITY.value:
        check_perplexity(run)
    split = read_split([run], SPLIT.value, DATA_ROOT.value)
    options = {'seed': SEED.value, 'most': MOST_FALSE.value, 'min_count': NOUNS.value}
    sets = false_sentences(split, ATTACKS.value, graphs=SCENE_GRAPHS.value, concreteness=CONCRETENESS.value, **options)
    count = min(TEXTS.value or split.num_texts, split.num_texts)
    texts = np.arange(count) * split.num_texts // count
    dtype = DTYPE.value or run.config['evaluation']['dtype']
    reader = PairReader(run, split, dtype=dtype, memory_mb=MEMORY_MB.value, report=cli.ProgressPrinter())
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
        'runs': [{'workdir': str(run.workdir), 'step': run.step, 'member': run.member}],
        'vocabulary_hash': [run.vocabulary.hash],
    }
    name = SPLIT.value + (f'_{MEMBER.value}' if MEMBER.value else '')
    folder = Path(OUTPUT.value) if OUTPUT.value else Path(WORKDIR.value) / 'eval' / name
    with replacing(folder / 'words.json') as file:
        file.write((json.dumps(report | {'protocol': protocol}, indent=2) + '\n').encode())
    print(f'{split.name}: {count} of {split.num_texts} texts; ties {protocol["ties"]}')
    print(f'{run.workdir}, step {run.step}, {run.member}')
    print(table(report))
    print(f'written to {folder / "words.json"}')


if __name__ == '__main__':
    cli.run(main)
