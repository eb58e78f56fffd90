"""`jitm train`, see `usage.train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import programs
from jitm.config.build import listing
from jitm.config.names import module_of
from jitm.config.section import own_names
from jitm.devices import parallel
from jitm.metrics import table
from jitm.models.make import member_model
from jitm.runs.progress import ProgressPrinter
from jitm.training.dry_run import describe
from jitm.training.sections import SECTIONS, complete
from jitm.training.stages import check, run_directory, train


def _print_result(config: Mapping[str, Any], workdir: Path, result: Mapping[str, Any]) -> None:
    """Prints the best metrics, the files of the run and the commands to run next."""
    split = config['evaluation']['split']
    best = result['best']
    first = result['first']
    read = {'data': config['data'], 'model': member_model(config, config['evaluation']['member'])}
    user_names = own_names(read, SECTIONS).values()
    imports = []
    for module in dict.fromkeys(map(module_of, user_names)):
        imports += ['--import', module]
    words = imports if split == shared.SPLIT else ['--split', split, *imports]
    untrained = f' (before training: rsum {first["rsum"]:.1f})' if first else ''
    print(f'\nbest on {split}, step {best["step"]}{untrained}')
    print(table(best))
    print(f'\nrun          {workdir}  (config.json, checkpoints/)')
    print(f'metrics      {workdir / "metrics.jsonl"}')
    print(f'TensorBoard  {programs.tensorboard(workdir / "tensorboard")}')
    print(f'evaluate     {programs.jitm("eval", "--workdir", workdir, *words)}')
    print(f'page         {programs.page(workdir, split, result["query"], imports)}')


def main(values: flags.FlagValues) -> None:
    """Trains and prints the result in the first process, or describes the run."""
    config = values.config
    workdir = Path(values.workdir)
    if values.dry_run:
        setups = check(config, workdir, values.accept_changed_code)
        print('\n'.join(listing(complete(config))))
        for number, setup in enumerate(setups, 1):
            print(f'\nstage {number} of {len(setups)}\n{describe(setup)}')
        return
    shared.start_processes(values)
    result = train(config, workdir, ProgressPrinter(), values.accept_changed_code)
    if parallel.is_primary():
        _print_result(config, run_directory(config, workdir), result)
