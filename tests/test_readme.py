"""README's commands run, as written, in a clean copy; a setting's own data are replaced by tiny ones."""

import doctest
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT, environment

README = (ROOT / 'README.md').read_text()
COMMANDS = [
    line.strip()
    for block in re.findall(r'```bash\n(.*?)```', README, flags=re.DOTALL)
    for line in block.replace('\\\n', ' ').splitlines()
    if line.strip() and not line.lstrip().startswith('#')
]
EXAMPLES = [block for block in re.findall(r'```python\n(.*?)```', README, flags=re.DOTALL) if 'import jitm' in block]
TINY = '--config.epochs=1 --config.batch_size=8 --config.model.embed_dim=8 --config.run.log_every=1'


@pytest.fixture(scope='module')
def copy(tmp_path_factory):
    """A copy of what git tracks or would track, with tiny data where README says the data lie."""
    folder = tmp_path_factory.mktemp('readme') / 'jitm'
    listed = subprocess.run(
        ['git', 'ls-files', '--cached', '--others', '--exclude-standard'], cwd=ROOT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    rng = np.random.default_rng(0)
    for root in ('f30k_precomp', 'f8k_precomp', 'coco_precomp', 'my_precomp'):
        data = folder / 'data' / root
        data.mkdir(parents=True)
        for split, images in (('train', 8), ('dev', 10), ('test', 10), ('testall', 10)):
            np.save(data / f'{split}_ims.npy', rng.normal(size=(images, 3, 6)).astype(np.float32))
            (data / f'{split}_caps.txt').write_text('a dog runs\n' * 5 * images)
    return folder


def test_the_first_screen_shows_what_to_type():
    screen = '\n'.join(README.splitlines()[:45])
    assert 'make demo' in screen
    assert 'make test' in screen


def test_every_file_it_names_is_there():
    links = re.findall(r'\]\((?!http)([^)#]+)', README)
    names = re.findall(r'`((?:configs|docs|jitm)/[\w/.]+\.\w+)`', README)
    for name in links + names:
        assert (ROOT / name).exists(), name


@pytest.mark.slow
def test_its_commands_run(copy):
    """One after the other, since they build on each other."""
    ran = 0
    for command in COMMANDS:
        if command.split()[0] in ('make', 'pip') or '../shared' in command:  # CI runs make; data are replaced
            continue
        if 'train.py' in command:
            command = f'{command} {TINY}'
        words = [sys.executable if word == 'python' else word for word in shlex.split(command)]
        env = environment(PYTHONPATH=str(copy))
        result = subprocess.run(words, cwd=copy, env=env, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, f'{command}\n{result.stderr}'
        ran += 1
    assert ran >= 5
    assert EXAMPLES
    for example in EXAMPLES:
        command = [sys.executable, '-c', example]
        result = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, f'{example}\n{result.stderr}'


def test_examples_in_the_docs_say_what_happens():
    for path in (ROOT / 'docs').glob('*.md'):
        results = doctest.testfile(str(path), module_relative=False)
        assert results.failed == 0, path
    assert doctest.testfile(str(ROOT / 'docs' / 'data.md'), module_relative=False).attempted >= 4
