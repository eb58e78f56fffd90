"""Rows of runs: what they hold, files of them, and the tables made from them."""

import json
import shutil

import pytest

from jitm.commands import cli
from jitm.errors import UserError
from jitm.report.group_names import differing_keys
from jitm.report.groups import config_keys, group_runs, read_groups, read_run_log
from jitm.report.rows import read_rows, read_runs, row_of, update_rows
from jitm.report.summary import summary
from tests.support.reports import config_of


def write_run(folder, rsums=(5, 90, 70), seed=0, timing=(10.5, 20.0), **changes):
    """A run of 6 steps per epoch; the recalls of a validation are the number of its epoch."""
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps(config_of(seed, epochs=len(rsums) - 1, **changes)))
    names = [f'{direction}/recall@{k}' for direction in ('i2t', 't2i') for k in (1, 5, 10)]
    lines = [{'step': 3, 'epoch': 0.5, 'part': 'train', 'target/ranking_loss': 1.0}]
    for n, rsum in enumerate(rsums):
        metrics = {'rsum': rsum, 'mean_distance': 0.1 * n} | dict.fromkeys(names, float(n))
        lines.append({'step': 6 * n, 'epoch': float(n), 'part': 'dev', **metrics})
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    times = [{'step': n, 'train_seconds': seconds, 'validation_seconds': 1.0} for n, seconds in enumerate(timing)]
    if times:
        (folder / 'timing.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in times))
    return folder


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_by_hand(tmp_path):
    row = row_of(read_run_log(write_run(tmp_path / 'a', seed=3)))
    assert row.pop('config') == {key: value for key, value in config_of(3, epochs=2).items() if key != 'run'}
    ties = read_run_log(write_run(tmp_path / 'ties', [5, 90, 90, 70]))
    assert row_of(ties)['best_epoch'] == 2.0  # the later one, which is also the best checkpoint
    assert row.pop('metrics') == {
        'rsum': 90,
        'mean_distance': 0.1,
        **{f'{direction}/recall@{k}': 1.0 for direction in ('i2t', 't2i') for k in (1, 5, 10)},
    }
    assert row == {
        'run': str(tmp_path / 'a'),
        'seed': 3,
        'split': 'dev',
        'epochs': 2,
        'steps': 12,
        'train_seconds': 30.5,
        'validation_seconds': 2.0,
        'best_epoch': 1.0,
        'rsum_by_epoch': [[0.0, 5], [1.0, 90], [2.0, 70]],
        'captions': '',
        'origins': {},
    }
    untimed = row_of(read_run_log(write_run(tmp_path / 'b', timing=())))
    assert (untimed['train_seconds'], untimed['validation_seconds']) == (None, None)


def test_summary_from_rows_is_that_of_the_runs(tmp_path, capsys):
    runs = [
        write_run(tmp_path / 'a0'),
        write_run(tmp_path / 'a1', [3, 40, 95, 80], seed=1),
        write_run(tmp_path / 'b', [1, 2], loss='sum_of_hinges'),
    ]
    (tmp_path / 'a1' / 'config.json').write_text(json.dumps(config_of(1, epochs=2)))
    rows = tmp_path / 'rows.jsonl'
    update_rows(read_groups(runs), rows)
    for inputs in ([rows], runs, [rows, '--select', f'{tmp_path}/a*,*/b']):
        assert cli.main(['report', 'summary', *map(str, inputs)]) == 0
        assert capsys.readouterr().out == summary(read_groups(runs)) + '\n'
    assert cli.main(['report', 'summary', str(rows), '--select', '*/a?']) == 0
    assert capsys.readouterr().out == summary(read_groups(runs[:2])) + '\n'


def test_rows_of_the_same_run_are_replaced_in_place(workplace):
    for seed, (name, rsums) in enumerate({'a': [1, 2], 'b': [3, 4]}.items()):
        write_run(workplace / name, rsums, seed)
    update_rows(read_groups([workplace / 'a']), workplace / 'new' / 'rows.jsonl')
    rows = workplace / 'new' / 'rows.jsonl'
    update_rows(read_groups([workplace / 'b', workplace / 'a']), rows)
    first = rows.read_bytes()
    assert [*read_rows(rows)] == [str(workplace / name) for name in 'ab']
    update_rows(read_groups([workplace / 'a']), rows)
    assert rows.read_bytes() == first
    update_rows(read_groups([workplace / 'a']), rows, {'commit': '1f1573e'})
    assert [row.get('commit') for row in read_rows(rows).values()] == ['1f1573e', None]
    shutil.rmtree(workplace / 'a')
    write_run(workplace / 'a', [1, 7])
    update_rows(read_groups([workplace / 'a']), rows)
    assert [row['metrics']['rsum'] for row in read_rows(rows).values()] == [7, 4]
    assert [path.name for path in rows.parent.iterdir()] == ['rows.jsonl']


def test_seeds_of_a_stage_are_one_group_without_their_runs(workplace):
    """Each seed is initialized from a run of its own, which itself is; the rows are written one by one."""
    rows = workplace / 'rows.jsonl'

    def write_chain(seed, loss):
        folder = workplace / f'{loss}{seed}'
        path = ''
        for stage in range(3):
            members = {'target': {'rule': 'gradient', 'init_from': path}}
            path = str(
                write_run(folder / f'stage{stage}', seed=seed, loss=loss if stage == 0 else 'x', members=members)
            )
        update_rows(read_groups([folder / 'stage2']), rows)

    for loss in ('max_of_hinges', 'sum_of_hinges'):
        for seed in (0, 1):
            write_chain(seed, loss)
    before = [group.run_names for group in group_runs(read_runs([rows]))]
    for folder in workplace.glob('*_of_hinges?'):
        shutil.rmtree(folder)
    groups = group_runs(read_runs([rows]))
    assert [group.run_names for group in groups] == before
    assert before == [f'{loss}0/stage2, {loss}1/stage2' for loss in ('max_of_hinges', 'sum_of_hinges')]
    keys = differing_keys([config_keys(group.runs[0].config) for group in groups])
    assert [*keys] == ['members.target.init_from']


def test_damaged_rows_are_refused_and_kept(tmp_path):
    groups = read_groups([write_run(tmp_path / 'a')])
    rows = tmp_path / 'rows.jsonl'
    update_rows(groups, rows)
    good = rows.read_text()
    for bad in ('{"run": ', '{"run": "b"}', '3', '[]'):
        rows.write_text(good + bad + '\n')
        with pytest.raises(UserError, match=r'line 2 of .*rows.jsonl is not a row of jitm report --rows'):
            update_rows(groups, rows)
        assert rows.read_text() == good + bad + '\n'
    rows.write_bytes(b'\xff\xfe')
    with pytest.raises(UserError, match=r'rows.jsonl, line 1 is not UTF-8'):
        read_rows(rows)
    with pytest.raises(UserError, match='none does not exist: give run directories'):
        read_runs([tmp_path / 'none'])
    (tmp_path / 'a' / 'timing.jsonl').write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=r'timing.jsonl is damaged'):
        row_of(groups[0].runs[0])


@pytest.mark.parametrize('name', ['a\u2028b', 'a\x85b', 'a\x0bb'])
def test_runs_with_line_separators_in_their_names(workplace, name):
    write_run(workplace / name)
    rows = workplace / 'rows.jsonl'
    update_rows(read_groups([workplace / name]), rows)
    assert [*read_rows(rows)] == [str(workplace / name)]


def test_patterns_without_a_run_and_repeated_runs_are_refused(tmp_path):
    run = write_run(tmp_path / 'a')
    with pytest.raises(UserError, match=r"no run is named 'b\*'; the names are such as .*a"):
        read_runs([run], ['b*'])
    copy = shutil.copytree(run, tmp_path / 'copy')
    for other in (run, copy):
        with pytest.raises(UserError, match=rf'{other} has the config and the seed of {run}, .* give each run once'):
            read_groups([run, other])
