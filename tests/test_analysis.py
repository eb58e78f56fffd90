import json

import pytest

from jitm import analysis
from jitm.errors import UserError


def write_run(folder, seed, rsums, **changes):
    folder.mkdir()
    config = {'seed': seed, 'evaluation': {'split': 'dev'}, 'run': {'log_every': seed + 1}} | changes
    (folder / 'config.json').write_text(json.dumps(config))
    recalls = {f'{direction}/recall@{k}': 10 * k for direction in ('i2t', 't2i') for k in (1, 5, 10)}
    lines = [{'step': 3, 'epoch': 0.5, 'part': 'train', 'target/loss': 1.0}]
    lines += [{'step': 6 * n, 'epoch': 1.0 * n, 'part': 'dev', 'rsum': rsum} | recalls for n, rsum in enumerate(rsums)]
    (folder / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    return folder


def test_seeds_are_averaged_and_settings_kept_apart(tmp_path):
    runs = [
        write_run(tmp_path / 'a0', 0, [3, 100, 90]),
        write_run(tmp_path / 'b0', 0, [3, 50], epochs=9),
        write_run(tmp_path / 'a1', 1, [5, 102, 104]),
    ]
    lines = analysis.summary(runs).splitlines()
    recalls = '10.0 ± 0.0 | 50.0 ± 0.0 | 100.0 ± 0.0'
    assert lines[2] == f'| a0, a1 | {recalls} | {recalls} | 102.0 ± 2.8 | 1, 2 |'
    assert lines[3] == '| b0 | 10.0 | 50.0 | 100.0 | 10.0 | 50.0 | 100.0 | 50.0 | 1 |'
    assert lines[5:] == [
        '| rsum after epoch | 0 | 1 | 2 |',
        '| --- | --- | --- | --- |',
        '| a0, a1 | 4.0 ± 1.4 | 101.0 ± 1.4 | 97.0 ± 9.9 |',
        '| b0 | 3.0 | 50.0 |  |',
    ]


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with pytest.raises(UserError, match='nowhere is not a run directory'):
        analysis.summary([tmp_path / 'nowhere'])
    with pytest.raises(UserError, match='empty has no validation yet'):
        analysis.summary([write_run(tmp_path / 'empty', 0, [])])
    assert analysis.main(['summary', str(tmp_path / 'nowhere')]) == 2
    assert capsys.readouterr().err.startswith('error: ')


def test_the_command_prints(tmp_path, capsys):
    assert analysis.main(['summary', str(write_run(tmp_path / 'a', 0, [1]))]) == 0
    assert '| a | 10.0 |' in capsys.readouterr().out
