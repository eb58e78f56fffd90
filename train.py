"""Trains the run a config describes: `python train.py --config configs/demo.py --workdir runs/demo`."""

from pathlib import Path

from absl import flags
from ml_collections import config_flags

from jitm import cli, parallel
from jitm.errors import UserError
from jitm.metrics import table
from jitm.training.loop import train_and_evaluate

CONFIG = config_flags.DEFINE_config_file('config', None, 'A file of configs/; --config.key=value overrides a key.')
WORKDIR = flags.DEFINE_string('workdir', None, 'The run directory: new, empty, or of the same run, which goes on.')
COORDINATOR = flags.DEFINE_string('coordinator', None, 'host:port of process 0, for training on several hosts.')
NUM_PROCESSES = flags.DEFINE_integer('num_processes', None, 'Number of processes in all, with --coordinator.')
PROCESS_ID = flags.DEFINE_integer('process_id', None, 'Number of this process from 0, with --coordinator.')
flags.mark_flags_as_required(['config', 'workdir'])


def main() -> None:
    """Trains and says where everything is."""
    processes = (COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
    if any(value is not None for value in processes):
        if None in processes:
            raise UserError('--coordinator, --num_processes and --process_id go together; give all three')
        parallel.start_processes(*processes)
    config = CONFIG.value.to_dict()
    result = train_and_evaluate(config, WORKDIR.value)
    if not parallel.is_primary():
        return
    workdir, split = Path(WORKDIR.value), config['evaluation']['split']
    print(f'\nbest on {split}, step {result["best"]["step"]} (before training: rsum {result["first"]["rsum"]:.1f})')
    print(table(result['best']))
    print(f'\nrun          {workdir}  (config.json, checkpoints/)')
    print(f'metrics      {workdir / "metrics.jsonl"}')
    print(f'TensorBoard  tensorboard --logdir {workdir / "tensorboard"}')
    print(f'evaluate     python eval.py --workdir {workdir}')


if __name__ == '__main__':
    cli.run(main)
