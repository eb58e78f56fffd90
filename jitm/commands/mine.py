"""`jitm mine`, see `usage.mine`."""

from pathlib import Path

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import loading
from jitm.data.pairs.mined_lists import MANIFEST
from jitm.devices import parallel
from jitm.mining.resumable_job import mine
from jitm.mining.state import compare_with_batch, summarize
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import ProgressPrinter
from jitm.runs.run import load_run, read_split


def main(values: flags.FlagValues) -> None:
    """Mines, and prints a summary in the first process."""
    parallel.use_all_cores()
    shared.start_processes(values)
    folder = Path(values.out)
    runs = [load_run(workdir, values.step) for workdir in values.workdir]
    split = read_split(runs, values.split, values.data_root, noisy=True)
    with interruptible(folder):
        mined = mine(
            runs,
            split,
            values.split,
            folder,
            top_h_texts=values.top_h_texts,
            top_h_images=values.top_h_images,
            options=loading.scoring_options(values),
            report=ProgressPrinter(),
        )
    if parallel.is_primary():
        print(f'{split.name}: {split.num_images} images, {split.num_texts} captions')
        print(summarize(mined, split))
        batch_size = runs[0].config['batch_size']
        print(compare_with_batch(split, batch_size, values.top_h_texts, values.top_h_images))
        print(f'written to {folder}  (i2t_{values.split}.npy, t2i_{values.split}.npy, {MANIFEST})')
