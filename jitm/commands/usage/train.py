"""Train a model from a config, or resume its training.

    jitm train --config demo --workdir runs/demo
    jitm train --config vse:rvse,selhn,f30k --workdir runs/rvse --config.epochs=10
    jitm train --config scan:t2i,avg,f30k --workdir runs/scan --dry_run

A stopped or killed run resumes with the same command, and ends with the same parameters as if it had
never stopped. `jitm settings` lists the published presets.
"""

from jitm.commands import flags as shared

REQUIRED = ('config', 'workdir')
FLAGS = {
    **shared.common('config', 'workdir', 'accept_changed_code', 'compilation_cache', *shared.PROCESS_FLAGS),
    'dry_run': shared.switch('Check the run, and print its config, data, models and memory; --workdir is not written.'),
}
RULES = shared.Rules(excludes={'dry_run': shared.PROCESS_FLAGS})
