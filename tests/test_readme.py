"""Every command of README and docs is one that the program accepts; those of README run, with tiny data and models."""

import doctest
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitm
from jitm import configs
from jitm.commands import cli
from jitm.evaluation import published
from jitm.runs.log import read_metrics
from tests.conftest import ROOT, environment
from tests.support.clip import write_published
from tests.support.pages import SHELL, commands, expanded, fences, jitm_arguments, shorten, write_modules

README = ROOT / 'README.md'
PAGES = [README, *(page for page in sorted((ROOT / 'docs').rglob('*.md')) if page.parent.name != 'cc_photos')]


def make_data(folder: Path) -> None:
    """Writes tiny data where README's commands look for them."""
    rng = np.random.default_rng(0)
    for name in ('f30k_precomp', 'f8k_precomp', 'my_precomp'):
        data = folder / 'data' / name
        data.mkdir(parents=True)
        for split, images in (('train', 8), ('dev', 10), ('test', 10)):
            np.save(data / f'{split}_ims.npy', rng.normal(size=(images, 3, 6)).astype(np.float32))
            (data / f'{split}_caps.txt').write_text('a dog runs\n' * 5 * images)
    (folder / 'models').mkdir()
    write_published(folder / 'models' / 'clip-vit-base-patch32', size=16)
    shutil.copytree(ROOT / 'docs' / 'cc_photos' / 'test', folder / 'photos')


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_is_short_and_starts_with_what_to_type():
    lines = README.read_text().splitlines()
    assert len(lines) <= 130
    assert max(len(line) for line in lines if not line.startswith('|')) <= 132
    screen = '\n'.join(lines[:25])
    assert 'make demo' in screen
    assert 'make test' in screen


@pytest.mark.parametrize('path', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path):
    text = path.read_text()
    for link in re.findall(r'(?:\]\(|src=")(?!http|\.\./\.\./actions)([^)"]+)[)"]', text):
        target, _, anchor = link.partition('#')
        file = (path.parent / target).resolve() if target else path
        assert file.is_relative_to(ROOT), link
        assert file.exists(), link
        if anchor:
            page = file.read_text()
            headings = [
                re.sub(r'[^\w\- ]', '', heading.replace('`', '').lower()).replace(' ', '-')
                for heading in re.findall(r'^#+ (.*)$', page, flags=re.MULTILINE)
            ]
            assert anchor in headings or f'id="{anchor}"' in page, link
    for name in re.findall(r'`((?:configs|docs|jitm|tests|benchmarks|experiments)/[\w/.]+\.\w+)[:`]', text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize('path', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_no_path_outside_of_the_repository(path):
    outside = re.findall(r'\.\./shared|data/unpack|/tmp/\S*|/home/\S*', path.read_text())
    assert not outside


def test_every_named_setting_exists():
    for path in PAGES:
        for setting in re.findall(rf'`((?:{"|".join(configs.FILES)}):[\w,]+)`', path.read_text()):
            configs.load(setting)


@pytest.mark.parametrize('path', PAGES, ids=lambda path: path.name)
def test_systems_to_compare_with_have_published_numbers(path):
    systems = {row.system.lower() for row in published.load()}
    for names in re.findall(r'--compare_systems ([^\s;`]+)', path.read_text()):
        for name in names.split(','):
            assert any(name.lower() in system for system in systems), name


@pytest.mark.parametrize('path', PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_accepted(path, workplace, monkeypatch):
    """Flags, config files, words and keys exist; nothing is run."""
    write_modules(path, workplace)
    for command in commands(path, workplace):
        arguments = jitm_arguments(command)
        if arguments is not None:
            monkeypatch.setattr(cli.load_command(arguments[0]), 'main', lambda *values: None)
            assert cli.main(arguments) == 0, command
        elif command[1:3] in (['-m', 'benchmarks'], ['-m', 'experiments']):
            continue  # benchmarks/tests/test_benchmarks.py parses their flags
        elif command[1:2] == ['-m']:
            source = ROOT.joinpath(*command[2].split('.')).with_suffix('.py').read_text()
            for flag in re.findall(r'^--(\w+)', '\n'.join(command[3:]), flags=re.MULTILINE):
                assert f"'--{flag}'" in source or f"'{flag}'" in source, command
        else:
            assert command[0] in SHELL, command


@pytest.mark.slow
def test_readme_commands_run(workplace, capsys):
    """In the order of the page, since they build on each other; then its Python, with the run of the demo."""
    make_data(workplace)
    demo = ['jitm', 'train', '--config', 'demo', '--workdir', 'runs/demo']
    assert ' '.join(demo[2:]) in (ROOT / 'Makefile').read_text()
    ran = 0
    for command in commands(README, workplace):
        arguments = jitm_arguments(demo if command == ['make', 'demo'] else command)
        if arguments is None:  # CI runs make and source, and installs by pip
            continue
        code = cli.main(shorten(arguments))
        assert code == 0, f'{command}\n{capsys.readouterr().err}'
        ran += 1
    assert ran >= 8
    examples = fences(README, 'python')
    assert examples
    for example in examples:
        exec(compile(example, 'README.md', 'exec'), {})


@pytest.mark.needs('runs/demo')
def test_numbers_of_the_demo():
    """CI runs `make demo` before the tests; the numbers of README are rounded, as CPUs differ."""
    workdir = ROOT / 'runs' / 'demo'
    text = ' '.join(README.read_text().split())
    dev, before = map(int, re.search(r'both directions, is about (\d+), before training about (\d+)', text).groups())
    test = int(re.search(r'# about (\d+)', text)[1])
    validations = [line['rsum'] for line in read_metrics(workdir) if line['part'] == 'dev']
    assert max(validations) == pytest.approx(dev, abs=12)
    assert validations[0] == pytest.approx(before, abs=3)
    assert jitm.evaluate(jitm.load(workdir), 'test')['rsum'] == pytest.approx(test, abs=12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('page', 'workdir', 'section', 'expected'),
    [
        ('losses', 'my_pairs', 'candidates', {'source': 'my_pairs.similar_length', 'tokens': 4}),
        ('models', 'my_model', 'model', {'name': 'my_models.MeanVectors', 'scale': 0.5}),
    ],
)
def test_own_sources_and_models_of_the_docs_run(page, workdir, section, expected, workplace, capsys):
    path = ROOT / 'docs' / f'{page}.md'
    write_modules(path, workplace)
    examples = [command for command in commands(path, workplace) if 'my_' in ' '.join(command)]
    assert examples
    for command in examples:
        assert cli.main(shorten(jitm_arguments(command))) == 0, capsys.readouterr().err
    config = json.loads((workplace / 'runs' / workdir / 'config.json').read_text())[section]
    assert config.items() >= expected.items()
    assert 'absolute' not in config


@pytest.mark.slow
def test_a_loss_is_written_as_its_page_says(workplace, capsys):
    """The loss, its tests, the runs of both losses, and what compares them."""
    path = ROOT / 'docs' / 'write_a_loss.md'
    write_modules(path, workplace)
    make_data(workplace)
    tested = 0
    for block in fences(path, 'bash'):
        for command in expanded([block], workplace):  # later blocks name folders that earlier ones make
            if command[0] == 'pytest':
                test = [sys.executable, '-m', *command, '-p', 'no:cacheprovider']
                assert subprocess.run(test, env=environment()).returncode == 0
                tested += 1
            elif arguments := jitm_arguments(command):
                assert cli.main(shorten(arguments)) == 0, f'{command}\n{capsys.readouterr().err}'
    assert tested
    printed = capsys.readouterr().out
    assert re.search(r'^\| soft_hinge \|.* ± .*seed=0, .*seed=1', printed, flags=re.MULTILINE)
    assert re.search(r'^soft_hinge: rsum \d+\.\d on test, [+-]\d+\.\d from max_of_hinges', printed, flags=re.MULTILINE)
    config = json.loads((workplace / 'runs' / 'soft_hinge' / 'config.json').read_text())
    assert config['terms']['ranking'].items() >= {'loss': 'my_loss.soft_hinge', 'margin': 0.2}.items()


def test_python_of_the_docs_is_valid():
    for path in PAGES:
        for example in fences(path, 'python'):
            compile(example, path.name, 'exec')


@pytest.mark.slow
def test_doctests_of_the_docs():
    attempted = {}
    for path in (ROOT / 'docs').glob('*.md'):
        results = doctest.testfile(str(path), module_relative=False)
        assert results.failed == 0, path
        attempted[path.name] = results.attempted
    assert attempted['data.md'] >= 4
    assert attempted['tags.md'] >= 4
