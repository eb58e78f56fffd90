import json

import pytest

from jitm.analysis.__main__ import main
from jitm.analysis.settings import distinguish, read_run, read_settings
from jitm.analysis.summary import summary
from jitm.errors import UserError


def config_of(seed=0, loss='max_of_hinges', model=None, **changes):
    config = {
        'seed': seed,
        'model': {'name': 'vse.VSE'} | (model or {}),
        'terms': {'ranking': {'loss': f'ranking.{loss}', 'margin': 0.2, 'since': 0}},
        'optimizer': {'name': 'adam', 'learning_rate': 1e-3},
        'evaluation': {'split': 'dev', 'member': 'target'},
        'run': {'log_every': seed + 1},
    }
    return config | changes


def write(folder, config, lines):
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    return folder


def write_run(folder, seed, rsums, **changes):
    recalls = {f'{direction}/recall@{k}': 10 * k for direction in ('i2t', 't2i') for k in (1, 5, 10)}
    lines = [{'step': 3, 'epoch': 0.5, 'part': 'train', 'target/loss': 1.0}]
    lines += [{'step': 6 * n, 'epoch': 1.0 * n, 'part': 'dev', 'rsum': rsum} | recalls for n, rsum in enumerate(rsums)]
    return write(folder, config_of(seed, **changes), lines)


def test_seeds_are_averaged_and_settings_kept_apart(tmp_path):
    runs = [
        write_run(tmp_path / 'a0', 0, [3, 100, 90]),
        write_run(tmp_path / 'b0', 0, [3, 50], loss='sum_of_hinges'),
        write_run(tmp_path / 'a1', 1, [5, 102, 104, 107]),
    ]
    lines = summary(read_settings(runs)).splitlines()
    recalls = '10.0 ± 0.0 | 50.0 ± 0.0 | 100.0 ± 0.0'
    assert lines[2] == f'| max_of_hinges | {recalls} | {recalls} | 103.5 ± 4.9 | 1, 3 | a0, a1 |'
    assert lines[3] == '| sum_of_hinges | 10.0 | 50.0 | 100.0 | 10.0 | 50.0 | 100.0 | 50.0 | 1 | b0 |'
    assert lines[5:] == [
        '| rsum after epoch | 0 | 1 | 2 | 3 |',
        '| --- | --- | --- | --- | --- |',
        '| max_of_hinges | 4.0 ± 1.4 | 101.0 ± 1.4 | 97.0 ± 9.9 | 107.0 |',
        '| sum_of_hinges | 3.0 | 50.0 | - | - |',
    ]


def test_what_is_no_run_is_refused(tmp_path, capsys):
    with pytest.raises(UserError, match='nowhere is not a run directory'):
        read_run(tmp_path / 'nowhere')
    empty = write(tmp_path / 'empty', config_of(), [])
    with pytest.raises(UserError, match='empty has no validation yet'):
        summary(read_settings([empty]))
    assert main(['summary', str(tmp_path / 'nowhere')]) == 2
    assert capsys.readouterr().err.startswith('error: ')


def test_the_command_prints(tmp_path, capsys):
    assert main(['summary', str(write_run(tmp_path / 'a', 0, [1]))]) == 0
    assert '| a | 10.0 |' in capsys.readouterr().out


def nested(**flat):
    config = config_of()
    for key, value in flat.items():
        *path, last = key.split('__')
        section = config
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return config


HINGES = 'ranking.sum_of_hinges'


@pytest.mark.parametrize(
    ('configs', 'names'),
    [
        ([{}], ['']),
        # What the loss tells apart needs no further words, whatever else differs.
        (
            [{}, {'terms__ranking__loss': HINGES, 'optimizer__learning_rate': 2e-3, 'model__absolute': True}],
            ['max_of_hinges', 'sum_of_hinges'],
        ),
        (
            [{}, {'terms__ranking__loss': 'ranking.selective', 'terms__ranking__epsilon': 0.01}],
            ['max_of_hinges', 'selective'],
        ),
        # Two keys are named where it takes both.
        (
            [{}, {'terms__ranking__loss': HINGES}, {'model__name': 'scan.SCAN', 'batch_size': 8}],
            ['max_of_hinges, VSE', 'sum_of_hinges, VSE', 'max_of_hinges, SCAN'],
        ),
        ([{}, {'optimizer__learning_rate': 2e-3}], ['learning_rate=0.001', 'learning_rate=0.002']),
        ([{}, {'terms__ranking__epsilon': 0.01}], ['no epsilon', 'epsilon=0.01']),
        # The loss is named although its argument alone would do.
        (
            [{}, *({'terms__ranking__loss': 'ranking.selective', 'terms__ranking__epsilon': n} for n in (1, 2))],
            ['max_of_hinges, no epsilon', 'selective, epsilon=1', 'selective, epsilon=2'],
        ),
        # The shortest ends of keys and values that are not ambiguous.
        ([{}, {'model__name': 'other.VSE'}], ['vse.VSE', 'other.VSE']),
        ([{'other__margin': 1}, {'other__margin': 2}], ['other.margin=1', 'other.margin=2']),
        ([{'model__weights': ''}, {'model__weights': 'a/b.npz'}], ['weights=', 'weights=a/b.npz']),
        # A loss of two would not say which of them it is.
        (
            [{'terms__late__loss': 'ranking.' + name} for name in ('polynomial', 'sum_of_hinges')],
            ['late.loss=ranking.polynomial', 'late.loss=ranking.sum_of_hinges'],
        ),
        ([{}, {'terms__late__loss': HINGES}], ['no late.loss', f'late.loss={HINGES}']),
    ],
)
def test_settings_are_named_by_what_tells_them_apart(configs, names):
    words = distinguish([nested(**config) for config in configs])
    assert [', '.join(word.values()) for word in words] == names


def test_log_intervals_are_no_settings(tmp_path):
    runs = [write_run(tmp_path / f'a{seed}', seed, [1]) for seed in (0, 1)]
    (setting,) = read_settings(runs)
    assert setting.words == {}
    assert setting.name == 'a0, a1'
