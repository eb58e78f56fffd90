"""The code and the commands of pages of the documentation, and what makes these short."""

import contextlib
import re
import subprocess
from pathlib import Path

from flax import traverse_util

from jitm import configs
from jitm.commands import cli
from jitm.training.sections import override

SHELL = {
    'bash',
    'gcloud',
    'hf',
    'ln',
    'make',
    'mpirun',
    'pip',
    'pytest',
    'source',
    'srun',
}  # what a page may call besides jitm and Python
TINY = {  # what makes a command of README short; the keys that its config sets are taken
    'epochs': '1',
    'length_multiple': '32',  # one shape to compile
    'batch_size': '8',
    'data.train_images': '16',
    'data.dev_images': '10',
    'data.test_images': '10',
    'model.embed_dim': '8',
    'model.text.word_dim': '8',
    'initialize.word_vectors': '',
    'initialize.image': '',
    'stages.first.initialize.image': '',
    'stages.first.epochs': '1',
    'stages.first.batch_size': '8',
    'stages.first.length_multiple': '32',
    'stages.first.model.embed_dim': '8',
    'stages.first.model.text.word_dim': '8',
    'terms.ranking.start_epoch': '0',
    'evaluation.every_steps': '1000',
    'offline.top_h_texts': '5',
    'offline.top_h_images': '2',
    'stages.top_h_texts': '5',
    'stages.top_h_images': '2',
    'run.log_every': '1',
}
LEFT_OUT = '--compare_systems'  # needs the published number of images


def fences(path: Path, language: str) -> list[str]:
    """Returns the fenced blocks of a language in a page."""
    return re.findall(rf'^```{language}\n(.*?)^```', path.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(path: Path, folder: Path) -> list[list[str]]:
    """Returns the commands of a page's bash blocks."""
    return expanded(fences(path, 'bash'), folder)


def expanded(blocks: list[str], folder: Path) -> list[list[str]]:
    """Returns the commands of blocks, expanded by bash itself in a folder: variables, braces, files and loops."""
    names = ['jitm', '.venv/bin/jitm', 'python', '.venv/bin/python', *sorted(SHELL - {'bash'})]
    script = ['record() { printf "%s\\037" "$@"; printf "\\036"; }']
    script += [f'{name}() {{ record {name} "$@"; }}' for name in names]
    script += ['set -e', *blocks]
    result = subprocess.run(['bash', '-c', '\n'.join(script)], cwd=folder, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, ''), blocks
    return [command.split('\037')[:-1] for command in result.stdout.split('\036')[:-1]]


def write_modules(path: Path, folder: Path) -> None:
    """Writes the blocks of Python in a page whose first line is a comment with the name of a file."""
    for block in fences(path, 'python'):
        if name := re.match(r'# (\w+\.py)\n', block):
            (folder / name[1]).write_text(block)


def jitm_arguments(command: list[str]) -> list[str] | None:
    """Returns the arguments of jitm; None if the command is not one of jitm."""
    program, *rest = command
    if program == 'srun':
        return jitm_arguments(rest)
    if program.endswith('jitm'):
        return rest
    if program.endswith('python') and rest[:2] == ['-m', 'jitm']:
        return rest[2:]
    if program.endswith('python') and rest[0] in ('train.py', 'eval.py'):
        return [rest[0].removesuffix('.py'), *rest[1:]]
    return None


def shorten(arguments: list[str]) -> list[str]:
    """Returns the arguments of a command in a small form: tiny sizes, and no comparison with published numbers."""
    short = list(arguments)
    if '--seeds' in short:
        short[short.index('--seeds') + 1] = '0,1'
    if '--explain' in short:
        short[short.index('--explain') + 1] = '1'
    if LEFT_OUT in short:
        index = short.index(LEFT_OUT)
        del short[index : index + 2]
    if '--config' not in short:
        return short
    config = configs.load(short[short.index('--config') + 1]).to_dict()
    flat = traverse_util.flatten_dict(config, sep='.')
    for key, value in TINY.items():
        with contextlib.suppress(cli.UserError):
            override(config, {key: value})
            if flat.get(key, True):
                short.append(f'--config.{key}={value}')
    return short
