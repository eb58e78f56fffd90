"""What the shared flags of commands name: a run, the options of scoring, photos and the folder of results."""

from pathlib import Path
from typing import Any

from absl import flags

from jitm.commands.flags import photos_folder
from jitm.data.splits import Split
from jitm.devices import parallel
from jitm.evaluation import saved
from jitm.files.outputs import OutputFolder
from jitm.inference.scoring import ScoringOptions
from jitm.pages.pictures import recorded_photos
from jitm.runs import run as run_lib
from jitm.runs.run import Run


def load_run(values: flags.FlagValues) -> Run:
    """Loads the model of `--workdir`, `--step` and `--member`, and lets all cores work."""
    parallel.use_all_cores()
    return run_lib.load_run(values.workdir, values.step, values.member)


def scoring_options(values: flags.FlagValues) -> ScoringOptions:
    """Returns the options of `--dtype`, `--precision` and, if the command has it, `--memory_mb`."""
    memory_mb = values.memory_mb if 'memory_mb' in values else None
    return ScoringOptions(values.dtype, memory_mb, values.precision)


def photos_of(values: flags.FlagValues, split: Split, run: Run) -> Path | None:
    """Returns the folder of `--photos`, or else that of the photos from which a run's split was encoded, or None."""
    return photos_folder(values) or recorded_photos(split, values.data_root or run.config['data'].get('root'))


def evaluation_folder(values: flags.FlagValues, workdir: str, **options: Any) -> OutputFolder:
    """Returns the folder --output, or by default one in a run directory that is named after the flags.

    Args:
      values: The parsed flags of a command that evaluates.
      workdir: The run directory.
      options: Other arguments of `jitm.evaluation.saved.folder_of`.

    Raises:
      UserError: If it holds something else.
    """
    arguments = {name: values[name].value for name in ('split', *saved.WORDS, 'data_root') if name in values}
    if isinstance(values['member'].value, list):
        arguments['member'] = '_'.join(values.member)
    path = Path(values.output) if values.output else saved.folder_of(Path(workdir), **arguments | options)
    return OutputFolder(path, saved.EVALUATION)
