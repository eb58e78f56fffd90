import json
import subprocess
import sys

import pytest

from jitm.commands import cli
from jitm.errors import UserError
from jitm.pages.figures import save
from jitm.report import validation
from jitm.report.curves import COLORS, Curve, by_epoch, draw
from jitm.report.group_names import distinguish
from jitm.report.groups import config_keys, group_runs, read_groups, read_run_log
from jitm.report.summary import summary
from jitm.report.training import by_window, curves, plateau_end, read_points, training
from tests.conftest import environment
from tests.support.reports import config_of


def write(folder, config, lines):
    folder.mkdir()
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return folder


def write_run(folder, seed, rsums, **changes):
    recalls = {f'{direction}/recall@{k}': 10 * k for direction in ('i2t', 't2i') for k in (1, 5, 10)}
    lines = [{'step': 3, 'epoch': 0.5, 'part': 'train', 'target/ranking_loss': 1.0}]
    lines += [{'step': 6 * n, 'epoch': 1.0 * n, 'part': 'dev', 'rsum': rsum} | recalls for n, rsum in enumerate(rsums)]
    return write(folder, config_of(seed, **changes), lines)


def write_training(folder, rsums=(), config=None, **values):
    """A run of 20 steps per epoch that logs every second step; `values` are logged in the lines of training."""
    lines = [{'step': 20 * n, 'epoch': 1.0 * n, 'part': 'dev', 'rsum': rsum} for n, rsum in enumerate(rsums)]
    for n in range(len(values['loss'])):
        line = {f'target/{"ranking_loss" if key == "loss" else key}': value[n] for key, value in values.items()}
        step = 2 * n + 2
        lines.append({'step': step, 'epoch': step / 20, 'part': 'train', 'target/collapsed_loss': 8.0} | line)
    return write(folder, config or config_of(), lines)


def test_summary_averages_seeds_of_a_group(tmp_path):
    runs = [
        write_run(tmp_path / 'a0', 0, [3, 100, 90]),
        write_run(tmp_path / 'b0', 0, [3, 50], loss='sum_of_hinges'),
        write_run(tmp_path / 'a1', 1, [5, 102, 104, 107]),
    ]
    lines = summary(read_groups(runs)).splitlines()
    recalls = '10.0 ± 0.0 | 50.0 ± 0.0 | 100.0 ± 0.0'
    assert lines[2] == f'| max_of_hinges | {recalls} | {recalls} | 103.5 ± 4.9 | - | 1, 3 | a0, a1 |'
    assert lines[3] == '| sum_of_hinges | 10.0 | 50.0 | 100.0 | 10.0 | 50.0 | 100.0 | 50.0 | -50.0 | 1 | b0 |'
    assert lines[5:] == [
        '| rsum after epoch | 0 | 1 | 2 | 3 |',
        '| --- | --- | --- | --- | --- |',
        '| max_of_hinges | 4.0 ± 1.4 | 101.0 ± 1.4 | 97.0 ± 9.9 | 107.0 |',
        '| sum_of_hinges | 3.0 | 50.0 | - | - |',
    ]


def test_summary_has_no_difference_between_data_sets(tmp_path):
    """Data sets are told by their captions, in two folders too, or if these are not known by their folders."""
    data = {'source': 'precomp.load', 'root': 'data/a'}
    runs = [write_run(tmp_path / name, 0, [3, 90], data=data | {'root': f'data/{name}'}) for name in 'ab']
    (first,), (second,) = (group.runs for group in read_groups(runs))
    for captions, difference in ((('', ''), '-'), (('x', 'y'), '-'), (('x', 'x'), '0.0'), (('x', ''), '-')):
        logs = [run._replace(captions=one) for run, one in zip((first, second), captions, strict=True)]
        text = summary(group_runs(logs))
        assert text.splitlines()[3].split(' | ')[8] == difference.replace('0.0', '+0.0')
        assert ('no difference from a, which has other data: b\n' in text) == (difference == '-')


def test_summary_has_the_mean_distance_if_all_runs_log_it(tmp_path):
    def write_distances(name, seed, distances):
        recalls = {f'{direction}/recall@{k}': 10 for direction in ('i2t', 't2i') for k in (1, 5, 10)}
        lines = [{'step': n, 'epoch': float(n), 'part': 'dev', 'rsum': 60.0 + n, **recalls} for n in range(2)]
        lines = [line | distance for line, distance in zip(lines, distances, strict=True)]
        return write(tmp_path / name, config_of(seed), lines)

    new = [write_distances(f'new{n}', n, [{'mean_distance': 0.1}, {'mean_distance': 0.5 + n / 10}]) for n in (0, 1)]
    header, _, row = summary(read_groups(new)).splitlines()[:3]
    assert header.endswith('| rsum | MD | best epoch | runs |')
    assert row.endswith('| 61.0 ± 0.0 | 0.55 ± 0.0707 | 1, 1 | new0, new1 |')
    half_old = write_distances('old', 2, [{'mean_distance': 0.5}, {}])
    header, _, row = summary(read_groups([*new, half_old])).splitlines()[:3]
    assert header.endswith('| rsum | best epoch | runs |')
    assert row.endswith('| 61.0 ± 0.0 | 1, 1, 1 | new0, new1, old |')


def test_directories_without_a_run_are_refused(tmp_path, capsys):
    with pytest.raises(UserError, match='nowhere is not a run directory'):
        read_run_log(tmp_path / 'nowhere')
    empty = write(tmp_path / 'empty', config_of(), [])
    with pytest.raises(UserError, match='empty has no validation yet'):
        summary(read_groups([empty]))
    with pytest.raises(UserError, match='empty has no line of training yet'):
        training(read_groups([empty]))
    with pytest.raises(UserError, match='empty has no validation yet'):
        validation.validation(read_groups([empty]))
    for report in ('summary', 'training', 'validation'):
        assert cli.main(['report', report, str(tmp_path / 'nowhere')]) == 2
        assert capsys.readouterr().err.startswith('error: ')


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
        # If the losses differ, no other key is named.
        (
            [{}, {'terms__ranking__loss': HINGES, 'optimizer__learning_rate': 2e-3, 'model__absolute': True}],
            ['max_of_hinges', 'sum_of_hinges'],
        ),
        # Two keys are named if one does not suffice.
        (
            [{}, {'terms__ranking__loss': HINGES}, {'model__name': 'scan.SCAN', 'batch_size': 8}],
            ['max_of_hinges, VSE', 'sum_of_hinges, VSE', 'max_of_hinges, SCAN'],
        ),
        ([{}, {'optimizer__learning_rate': 2e-3}], ['learning_rate=0.001', 'learning_rate=0.002']),
        ([{}, {'terms__ranking__epsilon': 0.01}], ['no epsilon', 'epsilon=0.01']),
        # Keys that all configs have come first.
        (
            [{'generator': 'target'}, {'generator': 'copy', 'members__copy__of': 'target'}],
            ['generator=target', 'generator=copy'],
        ),
        # The loss is named although its argument would suffice.
        (
            [{}, *({'terms__ranking__loss': 'ranking.selective', 'terms__ranking__epsilon': n} for n in (1, 2))],
            ['max_of_hinges, no epsilon', 'selective, epsilon=1', 'selective, epsilon=2'],
        ),
        # The shortest tails of keys and values that are not ambiguous.
        ([{}, {'model__name': 'other.VSE'}], ['vse.VSE', 'other.VSE']),
        ([{'model__weights': ''}, {'model__weights': 'a/b.npz'}], ['weights=', 'weights=a/b.npz']),
        ([{}, {'terms__ranking__loss': 'my/file.py:my_loss'}], ['max_of_hinges', 'my_loss']),
        # With two losses, the term is named.
        (
            [{'terms__late__loss': 'ranking.' + name} for name in ('polynomial', 'sum_of_hinges')],
            ['late.loss=ranking.polynomial', 'late.loss=ranking.sum_of_hinges'],
        ),
        # The loss, the model, the image network and the data are named wherever they differ, other keys are not.
        (
            [
                {'model__image__name': 'vision.RegionEncoder', 'data__root': 'data/f8k_precomp', 'epochs': 8},
                {
                    'model__image': {'name': 'cnn.PixelEncoder', 'network': {'name': 'cnn.SqueezeNet'}},
                    'data__root': 'data/f8k.photos/',
                    'terms__warm_up__loss': HINGES,
                    'epochs': 20,
                },
            ],
            ['RegionEncoder, f8k_precomp', 'SqueezeNet, f8k.photos'],
        ),
        (
            [
                {'terms__warm_up__loss': HINGES, 'data__root': 'a/f30k'},
                {'terms__ranking__loss': HINGES, 'data__root': 'b/f30k'},
                {'terms__ranking__loss': HINGES, 'data__source': 'scenes.load', 'model__name': 'scan.SCAN'},
            ],
            ['max_of_hinges, VSE, a/f30k', 'sum_of_hinges, VSE, b/f30k', 'sum_of_hinges, SCAN, scenes.load'],
        ),
    ],
)
def test_groups_are_named_by_their_differences(configs, names):
    words = distinguish([config_keys(nested(**config)) for config in configs])
    assert [', '.join(word.values()) for word in words] == names


@pytest.mark.parametrize(
    ('key', 'names'),
    [
        ('data.root', ['a', 'b']),
        ('initialize.bert', ['bert=data/a', 'bert=data/b']),
        ('relevance.path', ['relevance.path=data/a', 'relevance.path=data/b']),
    ],
)
def test_paths_make_groups(tmp_path, key, names):
    section, _, last = key.partition('.')
    runs = [
        write_run(tmp_path / f'{path}{seed}', seed, [1], **{section: {last: f'data/{path}'}})
        for path in 'ab'
        for seed in (0, 1)
    ]
    groups = read_groups(runs)
    assert [group.name for group in groups] == names
    assert [group.run_names for group in groups] == ['a0, a1', 'b0, b1']


def test_paths_of_runs_of_one_group_are_unified(tmp_path):
    """Each seed has its own anchor (OAS) or its own mined negatives (second stage of AOQ)."""
    for seed in (0, 1):
        (tmp_path / f's{seed}').mkdir()
        for name, loss in (('alone', 'max_of_hinges'), ('other', 'sum_of_hinges')):
            origin = write_run(tmp_path / f's{seed}' / name, seed, [1], loss=loss)
            candidates = tmp_path / f's{seed}' / f'{name}_candidates'
            candidates.mkdir()
            (candidates / 'manifest.json').write_text(json.dumps({'data': {}, 'workdirs': [str(origin)]}))

    def write_stage(seed, name):
        path = tmp_path / f's{seed}'
        members = {'target': {'rule': 'gradient', 'init_from': str(path / name)}}
        offline = {'path': str(path / f'{name}_candidates')}
        return write_run(path / f'after_{name}', seed, [1 + seed], members=members, offline=offline)

    after_alone, after_other = read_groups([write_stage(0, 'alone'), write_stage(1, 'alone'), write_stage(0, 'other')])
    assert after_alone.run_names == 's0/after_alone, s1/after_alone'
    assert after_other.run_names == 'after_other'
    assert after_alone.name == f'init_from={tmp_path}/s0/alone'
    assert after_alone.runs[1].config['offline']['path'] == f'{tmp_path}/s0/alone_candidates'


def test_window_includes_its_last_step():
    points = [(step / 234, step) for step in range(1, 469)]
    assert by_window(points, 1) == {0: list(range(1, 235)), 1: list(range(235, 469))}
    assert by_window([(0.1 + 0.2, 5)], 10) == {2: [5]}


def test_plateau_end_by_hand():
    assert plateau_end([(0.05, 1.2), (0.15, 0.94), (0.2, 0.98), (0.25, 0.94), (0.3, 0.95), (0.4, 0.5)]) == '0.3'
    assert plateau_end([(0.1, 1.0), (0.2, 0.95)]) == '-'


def test_points_of_the_evaluated_member(tmp_path):
    logged = {'b/ranking_loss': 3.0, 'b/collapsed_loss': 6.0, 'a/hard_share': 1.0, 'b/absolute_gap': 0.2}
    lines = [
        {'step': 0, 'epoch': 0.0, 'part': 'val', 'rsum': 7.0},
        {'step': 1, 'epoch': 0.5, 'part': 'train'} | logged,
        {'step': 2, 'epoch': 1.0, 'part': 'train', 'b/noise/i2t/gradient': 0.3} | logged | {'b/collapsed_loss': 0.0},
        {'step': 2, 'epoch': 1.0, 'part': 'dev', 'rsum': 9.0},
    ]
    evaluation, members = {'split': 'val', 'member': 'b'}, {name: {'rule': 'gradient'} for name in 'ab'}
    config = config_of(evaluation=evaluation, members=members)
    found = read_points(read_run_log(write(tmp_path / 'run', config, lines)))
    assert {key: points for key, points in found.items() if points} == {
        'loss': [(0.5, 0.5)],
        'absolute_gap': [(0.5, 0.2), (1.0, 0.2)],
        'noise/i2t/gradient': [(1.0, 0.3)],
        'rsum': [(0.0, 7.0)],
    }


def test_curve_ends_with_the_shortest_seed():
    joined = by_epoch([{1: 3.0, 0: 1.0, 2: 5.0}, {0: 2.0, 1: 9.0}, {0: 6.0, 1: 3.0}])
    assert joined == Curve([0, 1], [3.0, 5.0], [1.0, 3.0], [6.0, 9.0])


def test_curves_are_means_over_tenths_of_an_epoch(tmp_path):
    runs = [
        write_training(tmp_path / 'a', [1, 30], loss=[8, 4, 2], absolute_gap=[0.1, 0.2, 0.3]),
        write_training(tmp_path / 'b', [3, 20], config_of(1), loss=[4, 8, 6, 1]),
    ]
    fine = [
        {'step': step, 'epoch': step / 20, 'part': 'train', 'target/ranking_loss': step, 'target/collapsed_loss': 4}
        for step in (1, 2)
    ]
    (fast,) = read_groups([write(tmp_path / 'c', config_of(), fine)])
    assert curves(fast.runs) == {'loss': Curve([0.05], [0.375], [0.375], [0.375])}
    (group,) = read_groups(runs)
    joined = curves(group.runs)
    assert joined.keys() == {'loss', 'absolute_gap', 'rsum'}
    assert joined['loss'] == Curve([0.05, 0.15, 0.25], [0.75, 0.75, 0.5], [0.5, 0.5, 0.25], [1.0, 1.0, 0.75])
    assert joined['absolute_gap'] == Curve([0.05, 0.15, 0.25], *3 * [[0.1, 0.2, 0.3]])
    assert joined['rsum'] == Curve([0, 1], [2, 25], [1, 20], [3, 30])


def test_training_table(tmp_path, capsys):
    """10 lines per epoch: the medians of the first run are 0.05 and 0.4, of the second 0.3 and 0.1."""
    runs = [
        write_training(
            tmp_path / 'a',
            [1, 30, 25],
            loss=[8] * 12 + [7] * 3,
            image_fc_gradient_norm=[9] + [0.05] * 9 + [0.4] * 3 + [0.1, 5],
            hard_share=[0] * 10 + [0.5, 0.5, 1, 1, 1],
        ),
        write_training(
            tmp_path / 'b',
            [2, 34],
            config_of(1),
            loss=[8] * 20,
            image_fc_gradient_norm=[0.3] * 10 + [0.1] * 10,
            hard_share=[0] * 15 + [1] * 5,
        ),
        write_training(tmp_path / 'c', loss=[1], config=config_of(loss='sum_of_hinges')),
    ]
    output = tmp_path / 'new' / 'folder' / 'figure.png'
    assert cli.main(['report', 'training', *map(str, runs), '--output', str(output)]) == 0
    assert output.read_bytes().startswith(b'\x89PNG')
    assert capsys.readouterr().out.splitlines()[2:] == [
        '| max_of_hinges | 1.3, - | 0.075 ± 0.035 | 0.25 ± 0.21 | 0.65 ± 0.21 | 32.0 ± 2.8 | a, b |',
        '| sum_of_hinges | 0.1 | - | - | - | - | c |',
        '',
        f'written to {output}',
    ]


def write_validations(folder, rsums, **changes):
    """A run whose R@1 are 1/10 and 1/5 of its rsum."""
    recalls = [{'i2t/recall@1': rsum / 10, 't2i/recall@1': rsum / 5} for rsum in rsums]
    lines = [{'step': n, 'epoch': float(n), 'part': 'dev', 'rsum': rsum} | recalls[n] for n, rsum in enumerate(rsums)]
    return write(folder, config_of(**changes), lines)


def test_validation_table(tmp_path, capsys):
    """The means are 0, 40, 60, 50 of the first group, and 0, 60, 61 of the second, which exceeds 60 at epoch 2."""
    runs = [
        write_validations(tmp_path / 'a0', [0, 30, 50, 50], seed=0),
        write_validations(tmp_path / 'a1', [0, 50, 70, 50], seed=1),
        write_validations(tmp_path / 'b', [0, 60, 61], loss='sum_of_hinges'),
    ]
    output = tmp_path / 'figure.png'
    assert cli.main(['report', 'validation', *map(str, runs), '--output', str(output)]) == 0
    assert output.read_bytes().startswith(b'\x89PNG')
    assert capsys.readouterr().out.splitlines()[2:4] == [
        '| max_of_hinges | 6.0 (2) | 12.0 (2) | 60.0 (2) | - | - | - | a0, a1 |',
        '| sum_of_hinges | 6.1 (2) | 12.2 (2) | 61.0 (2) | 2 | 2 | 2 | b |',
    ]


def test_seeds_without_a_common_validation_are_refused(tmp_path):
    runs = [write_validations(tmp_path / f'a{n}', [0, 30], seed=n) for n in range(2)]
    lines = (runs[1] / 'metrics.jsonl').read_text().splitlines(keepends=True)
    (runs[0] / 'metrics.jsonl').write_text(lines[0])
    (runs[1] / 'metrics.jsonl').write_text(lines[1])
    with pytest.raises(UserError, match=r'a0, .*a1 have no validation of the same epoch'):
        validation.validation(read_groups(runs))


def test_panels_have_the_curves_of_their_quantity(tmp_path):
    runs = [
        write_training(tmp_path / 'a', [1, 30], loss=[8, 4], image_fc_gradient_norm=[0.1, 0.2]),
        write_training(tmp_path / 'b', [2, 20], config_of(model={'mlp': 1}), loss=[8, 2]),
        write_training(tmp_path / 'c', [3, 10], config_of(loss='sum_of_hinges'), loss=[8, 1]),
    ]
    groups = read_groups(runs)
    figure = draw(groups, [curves(group.runs) for group in groups])
    shown = []
    for panel in figure.axes:
        lines = [line for line in panel.lines if line.get_color() in COLORS]
        shown.append({COLORS.index(line.get_color()): line.get_ydata().tolist() for line in lines})
    loss, norm, rsum = shown
    assert loss == {0: [1, 0.5], 1: [1, 0.25], 2: [1, 0.125]}
    assert norm == {0: [0.1, 0.2]}
    assert rsum == {0: [1, 30], 1: [2, 20], 2: [3, 10]}
    assert [panel.get_yscale() for panel in figure.axes] == ['linear', 'log', 'linear']
    assert figure.axes[-1].get_ylim()[0] == 0
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [group.name for group in groups]


def test_zero_gradients_can_be_drawn(tmp_path, monkeypatch):
    write_training(tmp_path / 'run', loss=[8, 8], image_fc_gradient_norm=[0.0, 0.0])
    monkeypatch.chdir(tmp_path)
    assert cli.main(['report', 'training', 'run']) == 0
    assert (tmp_path / 'training.png').exists()


def test_unwritable_figure_is_a_user_error(tmp_path):
    groups = read_groups([write_training(tmp_path / 'run', loss=[8, 8])])
    for output, message in (
        (tmp_path, 'exists and was not written by jitm'),
        (tmp_path / 'figure.xyz', r'figure\.xyz has the suffix \.xyz; give --output one of png, '),
        (tmp_path / 'run' / 'config.json' / 'figure.png', r'figure\.png cannot be written: '),
    ):
        with pytest.raises(UserError, match=message):
            save(draw(groups, [curves(group.runs) for group in groups]), output)


@pytest.mark.slow
def test_libraries_are_loaded_for_drawing_only():
    code = "import jitm.commands.report, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code], env=environment(), check=False).returncode == 0
