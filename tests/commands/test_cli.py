"""The program jitm: its commands and their help, bad input, the compilation cache and the commands it prints."""

import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import jax
import pytest

import jitm.__main__
from jitm import configs
from jitm.commands import cli, convert, flags, programs
from jitm.config import schema
from jitm.errors import InterruptedRun, NotFiniteError, UserError
from jitm.importers import clip_weights
from tests.conftest import ROOT, environment


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    values, _ = cli._parse(cli.load_usage('eval'), ['--workdir=~/a', '--workdir', '~/b', '--output=~', '--split=a~b'])
    assert (values.workdir, values.output, values.split) == ([f'{tmp_path}/a', f'{tmp_path}/b'], str(tmp_path), 'a~b')
    config = configs.load('vse').to_dict()
    config['data']['root'], config['members']['target']['init_from'] = '~/x', '~/y'
    checked = schema.check(config)
    assert (checked['data']['root'], checked['members']['target']['init_from']) == (f'{tmp_path}/x', f'{tmp_path}/y')


def test_help_lists_every_command(capsys):
    folder = ROOT / 'jitm' / 'commands'
    modules = {path.stem for path in folder.glob('*.py')}
    assert modules == {*cli.COMMANDS, '__init__', 'cli', 'flags', 'loading', 'programs'}
    assert {path.stem for path in (folder / 'usage').glob('*.py')} == {*cli.COMMANDS, '__init__'}
    for argv in ([], ['--help'], ['-h']):
        assert cli.main(argv) == 0
        output = capsys.readouterr().out
        assert [line.split()[0] for line in output.splitlines() if line.startswith('  ')] == [*cli.COMMANDS]


STARTS = """
import sys
from jitm.commands import cli

def imported(*modules):
    return sys.modules.keys() & {*modules}

for argv in ([], ['settings'], *([name, '--help'] for name in cli.COMMANDS)):
    assert cli.main(argv) == 0
assert not imported('jax', 'flax', 'orbax', 'scipy', 'PIL', 'tqdm')
cli.load_command('search')
assert not imported('optax', 'scipy', 'tensorboardX', 'matplotlib', 'jinja2', 'tensorflow', 'torch')
cli.load_command('train')
assert not imported('matplotlib', 'jinja2', 'scipy', 'tensorflow', 'tensorflow_datasets', 'torch')
"""


def test_a_start_imports_what_it_needs(tmp_path):
    """Help and presets no jax, a search nothing of training, training no torch."""
    run = subprocess.run(
        [sys.executable, '-c', STARTS], env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_help_knows_the_names_of_modules_that_it_does_not_import():
    usage = cli.load_usage('convert')
    assert (usage.SYSTEMS, usage.TARGETS[1]) == ((*convert.LOADERS,), clip_weights.TARGET)


def test_version_and_date_are_those_of_the_citation(capsys):
    assert cli.main(['--version']) == 0
    assert capsys.readouterr().out == f'jitm {jitm.__version__}\n'
    date = re.search(rf'^## {jitm.__version__}, (.+)$', (ROOT / 'CHANGELOG.md').read_text(), flags=re.MULTILINE)[1]
    citation = (ROOT / 'CITATION.cff').read_text()
    assert f"\nversion: {jitm.__version__}\ndate-released: '{date}'\n" in citation


@pytest.mark.parametrize('name', cli.COMMANDS)
def test_help_of_a_command_names_its_flags(name, capsys):
    assert cli.main([name, '--help']) == 0
    output = capsys.readouterr().out
    usage = cli.load_usage(name)
    assert output.startswith(f'usage: jitm {name}')
    assert usage.__doc__.splitlines()[0] in output
    assert max(map(len, output.splitlines())) <= 120
    for required in getattr(usage, 'REQUIRED', ()):
        assert f' --{required} {required.upper()}' in output
    for flag in cli.define_flags(usage):
        assert f'--{flag}' in output or f'--[no]{flag}' in output


OWN = 'from jitm import configs\ndef get_config(words="f30k"):\n    return configs.load(f"vsrn:{words}")\n'


@pytest.mark.parametrize(
    ('argument', 'setting'),
    [
        ('vsrn', 'vsrn:f30k'),
        ('vsrn:f8k', 'vsrn:f8k'),
        ('configs/vsrn.py:f8k', 'vsrn:f8k'),
        ('demo', 'demo'),
        ('mine.py:coco', 'vsrn:coco'),
        ('sub/mine.py', 'vsrn:f30k'),
        ('configs/demo.py', 'vsrn:f30k'),  # a file of the working directory comes first
    ],
)
def test_settings_have_short_names_and_files_have_paths(tmp_path, monkeypatch, argument, setting):
    """In a folder with files of these names, and with a package configs that is not ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ('mine.py', 'sub/mine.py', 'vsrn', 'configs/demo.py'):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(OWN if name.endswith('.py') else 'not a config')
    Path('configs/__init__.py').write_text('raise ImportError("another package")')
    assert cli.read_config(argument) == configs.load(setting).to_dict()


def test_words_after_the_colon_reach_get_config(tmp_path):
    path = tmp_path / 'config.py'
    path.write_text(
        'import ml_collections\ndef get_config(words="none"):\n    return ml_collections.ConfigDict({"words": words})'
    )
    for argument, words in ((str(path), 'none'), (f'{path}:a,b:c', 'a,b:c'), (f'{path}:', '')):
        for argv in ([f'--config={argument}'], ['--config', argument]):
            values, _ = cli._parse(cli.load_usage('train'), [*argv, '--workdir=x'])
            assert values.config['words'] == words
    values, _ = cli._parse(cli.load_usage('train'), ['--config', f'{path}:a', '--workdir=x', '--config.words=b'])
    assert values.config['words'] == 'b'


def test_switches_are_true_or_false():
    with pytest.raises(UserError, match=r'^flag --save_sims=maybe: neither true nor false \(jitm eval --help'):
        cli._parse(cli.load_usage('eval'), ['--save_sims=maybe'])
    for word, value in (('--save_sims', True), ('--save_sims=true', True), ('--nosave_sims', False)):
        assert cli._parse(cli.load_usage('eval'), ['--workdir=x', word])[0].save_sims == value


def test_a_command_is_repeated_with_its_flags():
    argv = ['--workdir', 'a', '--workdir', "b's", '--nocompilation_cache', '--port', '1']
    values, _ = cli._parse(cli.load_usage('explorer'), argv)
    words = 'jitm', 'explorer', '--workdir=a', "--workdir=b's", '--port=1', '--nocompilation_cache'
    assert flags.repeated('explorer', values) == shlex.join(words)
    values, words = cli._parse(
        cli.load_usage('search'), ['--workdir', 'a', '--split', 'b', '--json', '--', '-5', 'rings']
    )
    assert flags.repeated('search', values, words) == 'jitm search --workdir=a --split=b --json -- -5 rings'


def test_errors_have_their_exit_codes(monkeypatch, capsys):
    full = OSError(28, 'No space left on device', '/data/x')
    for error, code, text in (
        (UserError('wrong'), 2, 'error: wrong\n'),
        (full, 2, 'error: /data/x: No space left on device; choose another path\n'),
        (InterruptedRun('stopped'), 75, 'stopped\n'),
        (NotFiniteError('not finite'), 76, 'not finite\n'),
        (UserError('a\n\x1b[31m\udcff.jpg'), 2, 'error: a\ufffd\ufffd[31m\ufffd.jpg\n'),
    ):

        def fail(values, words, error=error):
            raise error

        monkeypatch.setattr(cli.load_command('settings'), 'main', fail)
        assert cli.main(['settings']) == code
        assert capsys.readouterr().err == text


def test_a_terminal_of_another_encoding_shows_what_it_can(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, encoding='ascii', write_through=True))
    monkeypatch.setattr(cli.load_command('settings'), 'main', lambda values, words: print('1  für \udcff.jpg'))
    assert cli.main(['settings']) == 0
    assert written.getvalue() == b'1  f?r ?.jpg\n'


@pytest.fixture
def old_run(tmp_path):
    """A run directory whose one checkpoint is of an older format."""
    import numpy as np

    from jitm.runs import checkpoint

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, 'FORMAT', 1)
        with checkpoint.Checkpoints(tmp_path / 'run') as checkpoints:
            checkpoints.save({'w': np.zeros(2)}, 3, {'config': {}}, {'rsum': 1.0})
    return tmp_path / 'run'


def test_runs_of_an_older_format_are_refused(old_run, capsys):
    assert cli.main(['eval', '--workdir', str(old_run)]) == 2
    error = capsys.readouterr().err
    assert 'checkpoints/3 was written by another version of jitm; train it again with this one' in error
    assert len(error.splitlines()) == 1


@pytest.fixture
def cache_options():
    """Restores the options of JAX that the compilation cache sets."""
    names = (
        'jax_compilation_cache_dir',
        'jax_persistent_cache_min_compile_time_secs',
        'jax_enable_compilation_cache',
    )
    values = {name: getattr(jax.config, name) for name in names}
    jax.config.update('jax_compilation_cache_dir', None)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 1.0)
    yield
    for name, value in values.items():
        jax.config.update(name, value)


def test_the_compilation_cache_is_in_the_cache_of_the_user(cache_options, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    flags.keep_compiled(True)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'jitm' / 'compiled')
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert (tmp_path / 'jitm' / 'compiled').is_dir()
    jax.config.update('jax_compilation_cache_dir', None)
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path))
    flags.keep_compiled(True)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / '.cache' / 'jitm' / 'compiled')


def test_a_given_compilation_cache_is_kept(cache_options, tmp_path):
    jax.config.update('jax_compilation_cache_dir', str(tmp_path))
    flags.keep_compiled(True)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_the_compilation_cache_can_be_turned_off(cache_options, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert cli.main(['eval', '--workdir', str(tmp_path), '--nocompilation_cache']) == 2
    assert jax.config.jax_compilation_cache_dir is None
    assert not jax.config.jax_enable_compilation_cache
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_turns_the_cache_off(cache_options, tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    flags.keep_compiled(True)
    assert jax.config.jax_compilation_cache_dir is None


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A project folder, as the working directory, with .venv/bin/python and no programs."""
    scripts = tmp_path / '.venv' / 'bin'
    scripts.mkdir(parents=True)
    (scripts / 'python').touch(mode=0o755)
    monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(scripts))
    monkeypatch.setattr(sys, 'executable', str(scripts / 'python'))
    monkeypatch.setenv('PATH', '/usr/bin:/bin')
    monkeypatch.chdir(tmp_path)
    return scripts


def test_printed_commands_name_the_programs_of_this_installation(installation, monkeypatch, tmp_path):
    assert programs.jitm('eval') == '.venv/bin/python -m jitm eval'
    (installation / 'jitm').touch(mode=0o755)
    assert programs.jitm('eval', '--workdir', Path('my runs/x')) == ".venv/bin/jitm eval --workdir 'my runs/x'"
    install = '.venv/bin/python -m pip install --quiet tensorboard && '
    assert programs.tensorboard(Path('x')) == f'{install}.venv/bin/tensorboard --logdir x'
    (installation / 'tensorboard').touch(mode=0o755)
    assert programs.tensorboard(Path('x')) == '.venv/bin/tensorboard --logdir x'
    monkeypatch.setenv('PATH', f'{installation}:{os.environ["PATH"]}')  # as an activated environment does
    assert programs.jitm('eval') == 'jitm eval'
    assert programs.tensorboard(Path('x')) == 'tensorboard --logdir x'
    monkeypatch.setenv('PATH', '/usr/bin:/bin')
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    assert programs.jitm('eval') == f'{installation}/jitm eval'


@pytest.mark.parametrize(
    ('query', 'package', 'command'),
    [
        ("a ring's edge", 'report', """search --workdir x --split dev --html x/found.html 'a ring'"'"'s edge'"""),
        ('-5 rings', 'report', "search --workdir x --split dev --html x/found.html -- '-5 rings'"),
        ('', 'explorer', 'explorer --workdir x --split dev'),
    ],
)
def test_the_printed_command_of_a_page_installs_what_pages_need(query, package, command, installation, monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    install = f".venv/bin/python -m pip install --quiet -e '.[{package}]' && "
    assert programs.page(Path('x'), 'dev', query) == f'{install}.venv/bin/python -m jitm {command}'
    monkeypatch.setattr('importlib.util.find_spec', lambda name: name)
    assert programs.page(Path('x'), 'dev', query) == f'.venv/bin/python -m jitm {command}'


@pytest.mark.slow
@pytest.mark.parametrize('start', [['-m', 'jitm', 'settings'], ['-m', 'jitm']])
def test_the_module_is_the_program(start, tmp_path):
    result = subprocess.run([sys.executable, *start], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ''
    assert 'rvsepp' in result.stdout or 'jitm COMMAND --help' in result.stdout


def test_the_installed_program_is_that_of_pyproject():
    scripts = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['scripts']
    installed = {point.name: point for point in metadata.distribution('jitm').entry_points}
    assert {name: point.value for name, point in installed.items()} == scripts, 'install jitm again'
    assert installed['jitm'].load() is jitm.__main__.main
    program = Path(sysconfig.get_path('scripts'), 'jitm').read_text()
    assert 'from {} import {}'.format(*scripts['jitm'].split(':')) in program, 'install jitm again'


@pytest.mark.slow
@pytest.mark.parametrize('script', ['train.py', 'eval.py'])
def test_the_scripts_are_commands(script, tmp_path):
    assert len([line for line in (ROOT / script).read_text().splitlines() if line]) <= 6
    result = subprocess.run(
        [sys.executable, ROOT / script, '--help'], env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f'usage: jitm {script.removesuffix(".py")} ')
