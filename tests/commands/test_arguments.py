"""Wrong arguments of a command: one sentence and exit code 2."""

import os

import pytest

from jitm.commands import cli
from tests.conftest import ROOT

TRAIN = f'train --workdir run --config {ROOT}/configs/vsepp.py'
PROCESSES = f'{TRAIN} --coordinator localhost:1234 --num_processes 2 --process_id'
WRONG = [
    ('train --workdir run --config=', '--config is missing; jitm settings lists'),
    ('train --workdir run --config.epochs=3', '--config is missing; jitm settings lists'),
    ('train --workdir run --config=:f30k', '--config is missing; jitm settings lists'),
    ('train --workdir run --config=None', 'config file None does not exist'),
    (f'train --workdir run --config={ROOT}', f'config file {ROOT} is not a regular file'),
    ('train --workdir run --config=pipe.py', 'config file pipe.py is not a regular file'),
    ('train --workdir run --config={dict}', 'get_config returns dict; return a ConfigDict'),
    ('train --workdir run --config={none}', 'get_config returns NoneType; return a ConfigDict'),
    (f'{TRAIN} --num_processes=0', '--num_processes=0: 0 is not a positive integer'),
    (f'{PROCESSES} -1', '--process_id=-1'),
    (f'{PROCESSES} 5', '--process_id is 5, but --num_processes is 2; number the processes from 0'),
    (f'{PROCESSES} 1 --coordinator=nonsense', "--coordinator is 'nonsense'; give host:port of process 0"),
    (f'{PROCESSES} 1 --coordinator=host:', "--coordinator is 'host:'; give host:port of process 0"),
    ('eval --workdir {finished} --split ../tiny/dev', "the split is '../tiny/dev'; give the name of one, such as dev"),
    ('mine --workdir {finished} --split a/b --out x', "the split is 'a/b'; give the name of one, such as dev"),
]


@pytest.mark.parametrize(('command', 'sentence'), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments_are_one_sentence(finished, tmp_path, monkeypatch, capsys, command, sentence):
    (tmp_path / 'dict.py').write_text('def get_config():\n    return {1: 2}\n')
    (tmp_path / 'none.py').write_text('def get_config():\n    return None\n')
    os.mkfifo(tmp_path / 'pipe.py')
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob('*')) + sorted(finished.rglob('*'))
    words = command.format(finished=finished, dict=tmp_path / 'dict.py', none=tmp_path / 'none.py').split()
    assert cli.main(words) == 2
    output, error = capsys.readouterr()
    assert output == ''
    assert sentence in error
    assert len(error.splitlines()) == 1, error
    assert sorted(tmp_path.rglob('*')) + sorted(finished.rglob('*')) == before
