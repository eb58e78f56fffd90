"""Trains the run a config describes: `python train.py --config configs/demo.py --workdir runs/demo`."""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from jitm import parallel
from jitm.commands import cli
from jitm.metrics import table
from jitm.runs.progress import ProgressPrinter
from jitm.training.stages import run_directory, train

CONFIG = config_flags.DEFINE_config_file('config', None, 'A file of configs/; --config.key=value overrides a key.')
WORKDIR = flags.DEFINE_string('workdir', None, 'The run directory: new, empty, or of the same run, which goes on.')
cli.define_process_flags()
flags.mark_flags_as_required(['config', 'workdir'])


def main() -> None:
    """Trains and says where everything is."""
    cli.start_processes()
    config, workdir = CONFIG.value.to_dict(), Path(WORKDIR.value)
    result, workdir = train(config, workdir, ProgressPrinter()), run_directory(config, workdir)
    if not parallel.is_primary():
        return
    split = config['evaluation']['split']
    print(f'\nbest on {split}, step {result["best"]["step"]} (before training: rsum {result["first"]["rsum"]:.1f})')
    print(table(result['best']))
    print(f'\nrun          {workdir}  (config.json, checkpoints/)')
    print(f'metrics      {workdir / "metrics.jsonl"}')
    print(f'TensorBoard  tensorboard --logdir {workdir / "tensorboard"}')
    print(f'evaluate     python eval.py --workdir {workdir}')


if __name__ == '__main__':
    cli.run(main)
