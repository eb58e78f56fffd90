"""Mines the most confusing negatives of a split: `python -m jitm.mining --workdir runs/round1 --out candidates`."""

from pathlib import Path

from absl import flags

from jitm import parallel
from jitm.commands import cli
from jitm.data.candidates import MANIFEST
from jitm.evaluation.scoring import DTYPES
from jitm.mining.job import mine
from jitm.mining.report import summarize
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import load_run, read_split

WORKDIR = flags.DEFINE_multi_string('workdir', None, 'A run directory; several mine as one ensemble.')
OUT = flags.DEFINE_string('out', None, 'The folder for the lists.')
TOP_H_TEXTS = flags.DEFINE_integer('top_h_texts', 300, 'Texts for each image.', lower_bound=1)
TOP_H_IMAGES = flags.DEFINE_integer('top_h_images', 60, 'Images for each text.', lower_bound=1)
SPLIT = flags.DEFINE_string('split', 'train', 'The split to mine.')
STEP = flags.DEFINE_integer('step', None, 'The checkpoint; the best by validation if not given.')
DATA_ROOT = flags.DEFINE_string('data_root', None, 'The data folder, if it has moved since training.')
DTYPE = flags.DEFINE_enum('dtype', None, list(DTYPES), 'Of the encodings that are scored, if not as in validation.')
MEMORY_MB = flags.DEFINE_integer('memory_mb', None, 'MiB for scoring, if not as in the config.', lower_bound=1)
cli.define_process_flags()
flags.mark_flags_as_required(['workdir', 'out'])


def main() -> None:
    """Mines, and says what was found."""
    cli.start_processes()
    folder = Path(OUT.value)
    runs = [load_run(workdir, STEP.value) for workdir in WORKDIR.value]
    split = read_split(runs, SPLIT.value, DATA_ROOT.value)
    with interruptible(folder):
        found = mine(
            runs,
            split,
            SPLIT.value,
            folder,
            top_h_texts=TOP_H_TEXTS.value,
            top_h_images=TOP_H_IMAGES.value,
            dtype=DTYPE.value,
            memory_mb=MEMORY_MB.value,
            report=ProgressPrinter(),
        )
    if parallel.is_primary():
        print(f'{split.name}: {split.num_images} images, {split.num_texts} texts')
        print(summarize(found, split))
        print(f'written to {folder}  (i2t_{SPLIT.value}.npy, t2i_{SPLIT.value}.npy, {MANIFEST})')


if __name__ == '__main__':
    cli.run(main)
