"""The warning of a collapsed loss, on logged lines of no real run."""

import errno
import functools
import json
import os
import re
import sys

import pytest
import tqdm

from jitm.errors import UserError
from jitm.runs.log import MetricsFile, read_lines
from jitm.runs.progress import Pace
from jitm.training import logs as logs_module
from jitm.training.logs import COLLAPSE_STEPS, Board, CollapseMonitor, Logs, advise, describe_change, term_changes

CONSTANT = 51.2  # the loss for constant scores
EPOCH = 234  # steps, as on Flickr8k with batches of 128
SUM = {'loss': 'ranking.sum_of_hinges', 'start_epoch': 0, 'end_epoch': 1}
MAX = {'loss': 'ranking.max_of_hinges', 'start_epoch': 1, 'end_epoch': None}
SELHN = MAX | {'loss': 'ranking.selective_hard_negative'}
SUM_FIRST = term_changes({'warm_up': SUM, 'ranking': MAX}, EPOCH)


def make_lines(losses, every=10):
    """Returns the lines of logged steps with these losses, with a validation on the training split after each."""
    for step, loss in enumerate(losses, 1):
        train = {'target/loss': loss, 'target/gap': 0.0, 'target/ranking_loss': loss, 'target/collapsed_loss': CONSTANT}
        yield {'step': every * step, 'epoch': every * step / EPOCH, 'part': 'train', **train}
        yield {'step': every * step, 'epoch': every * step / EPOCH, 'part': 'train', 'rsum': 6.0}


def warned_steps(lines, changes=(0,)):
    monitor = CollapseMonitor('target', changes)
    return [line['step'] for line in lines if monitor.update(line)]


def test_terms_change_where_one_starts_or_ends():
    assert SUM_FIRST == [0, EPOCH]
    late = MAX | {'start_epoch': 2, 'end_epoch': 4}
    assert term_changes({'ranking': MAX, 'late': late}, 10) == [0, 10, 20, 40]


def test_a_change_names_the_losses_of_both_epochs():
    late = {'loss': 'ranking.softmax', 'start_epoch': 1, 'end_epoch': 3}
    terms = {'warm_up': SUM, 'ranking': MAX, 'late': late}
    now = 'the loss is now ranking.max_of_hinges + ranking.softmax instead of ranking.sum_of_hinges, so its values are'
    assert describe_change(terms, 1).startswith(now)
    ended = 'the loss is now ranking.max_of_hinges instead of ranking.max_of_hinges + ranking.softmax,'
    assert describe_change(terms, 3).startswith(ended)


def test_collapse_from_the_first_step_is_warned_of_once():
    lines = list(make_lines([51.3] * 200))
    assert warned_steps(lines) == [COLLAPSE_STEPS]
    warning = next(filter(None, map(CollapseMonitor('target').update, lines)))
    plateau = 'for 500 steps the loss has been within 5 % of its value for constant scores (now 51.30 of 51.20)'
    assert warning.startswith(plateau)


@pytest.mark.parametrize(
    ('terms', 'advice'),
    [
        ({'ranking': MAX}, 'a first epoch of sum_of_hinges, ranking.selective_hard_negative, or a lower'),
        ({'warm_up': SUM, 'ranking': MAX}, 'more epochs of sum_of_hinges than 1, ranking.selective_hard_negative'),
        ({'warm_up': SUM, 'ranking': SELHN}, 'more epochs of sum_of_hinges than 1, or a lower learning rate may help'),
        ({'ranking': SUM | {'end_epoch': None}}, 'a lower learning rate may help'),
    ],
)
def test_a_warning_advises_more_epochs_of_sums_than_the_config_has(terms, advice):
    monitor = CollapseMonitor('target', advice=advise(terms))
    (warning,) = filter(None, map(monitor.update, make_lines([50.18] * 60)))
    assert '(now 50.18 of 51.20)' in warning
    assert f'hardly learns; {advice}' in warning


def test_each_plateau_is_warned_of():
    plateau = COLLAPSE_STEPS // 10
    assert warned_steps(make_lines([80] + [51.3] * plateau + [30] + [50.9] * plateau)) == [
        10 + COLLAPSE_STEPS,
        20 + 2 * COLLAPSE_STEPS,
    ]


def test_first_steps_of_max_of_hinges_are_no_collapse():
    """Sum of hinges ends near the value for constant scores, at which max of hinges then starts."""
    warm_up = [300.0] * 3 + [51.0] * 20
    assert not warned_steps(make_lines(warm_up + [51.3] * 40 + [45.0] * 100), SUM_FIRST)
    assert warned_steps(make_lines(warm_up + [51.3] * 100), SUM_FIRST) == [EPOCH + COLLAPSE_STEPS + 6]


def test_steps_count_whatever_the_period_of_the_log():
    losses = [80.0] * 100 + [51.3] * COLLAPSE_STEPS
    assert warned_steps(make_lines(losses, every=1)) == warned_steps(make_lines(losses[::10])) == [100 + COLLAPSE_STEPS]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Logs lines in a run directory from a restored step on; returns the steps of its warnings."""
    printed = []
    monkeypatch.setattr(Logs, 'say', lambda _, text: printed.append(text))

    def log(name, lines, restored=None):
        printed.clear()
        with Logs(tmp_path / name, restored, 2000, 128, CollapseMonitor('target', SUM_FIRST)) as logs:
            for line in lines:
                names = [key for key in line if key.startswith('target/')]
                if names:
                    logs.train(line['step'], line['epoch'], {key: line[key] for key in names})
        return [int(re.match(r'WARNING step (\d+): for 5\d\d steps the loss', text).group(1)) for text in printed]

    return log


@pytest.mark.parametrize('restored', [100, 400, 730, 740, 750, 1100, 1400])
def test_resumed_run_warns_at_the_same_steps(log, restored):
    lines = list(make_lines([300.0] * 10 + [51.3] * 80 + [30.0] * 5 + [51.3] * 60))
    want = log('whole', lines)
    assert len(want) == 2
    early = log('run', [line for line in lines if line['step'] <= restored + 90])  # stopped 90 steps after it saved
    late = log('run', [line for line in lines if line['step'] > restored], restored)
    assert [step for step in early if step <= restored] + late == want


def test_lines_reach_a_file_at_once(tmp_path, monkeypatch):
    file = (tmp_path / 'out.txt').open('w')
    monkeypatch.setattr(sys, 'stdout', file)
    with Logs(tmp_path / 'run', None, 2000, 128, CollapseMonitor('target')) as logs:
        logs.say('a line')
        assert (tmp_path / 'out.txt').read_text() == 'a line\n'
    file.close()


def test_the_first_validation_explains_its_words(tmp_path, capsys):
    metrics = dict.fromkeys(('i2t/recall@1', 't2i/recall@1', 'rsum'), 1.0)
    with Logs(tmp_path / 'run', None, 12, 128, CollapseMonitor('target')) as logs:
        logs.validation(0, 0.0, 'dev', metrics, 0.0)
        logs.validation(12, 1.0, 'dev', metrics, 0.0)
    first, legend, _ = capsys.readouterr().out.splitlines()
    assert first.startswith('step 0')
    assert legend == logs_module.LEGEND
    assert 'rsum: ' in legend
    assert 'gap: ' in legend


def test_the_bar_leaves_compiling_out_and_ends_before_the_last_lines(tmp_path, monkeypatch, capfd):
    """On a terminal, of a fixed width."""
    now = [0.0]
    monkeypatch.setattr(logs_module, 'Pace', functools.partial(Pace, clock=lambda: now[0]))
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr(tqdm.tqdm, '__init__', functools.partialmethod(tqdm.tqdm.__init__, ncols=120))
    metrics = {'target/loss': 1.0, 'target/gap': 0.5}
    with Logs(tmp_path / 'run', None, 12, 128, CollapseMonitor('target')) as logs:
        with logs.pace.doing('compiling', compiles=True):
            now[0] += 300
        for step in range(1, 13):
            now[0] += 0.5 * (step > 1)
            logs.pace.step = step
            if step == 7:
                logs.train(step, 0.5, metrics)
                logs._bar.refresh()
        logs.validation(12, 1.0, 'dev', dict.fromkeys(('i2t/recall@1', 't2i/recall@1', 'rsum'), 1.0), 1.0)
        logs.say('the last line')
    shown = capfd.readouterr()
    assert '7/12 [00:00, 0:00:02 left, loss 1, gap 0.5, pairs/s 256]' in shown.err
    assert shown.err.splitlines()[-1].lstrip('\r').startswith('100%')
    assert '12/12' in shown.err
    (timing,) = read_lines(tmp_path / 'run' / 'timing.jsonl')
    assert f', {timing["pairs_per_second"]:.0f} pairs/s, waiting' in shown.out


def test_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    metrics = MetricsFile(tmp_path / 'metrics.jsonl', 0)
    board = Board(tmp_path / 'tensorboard', 0)
    for path, write, patched in (
        ('metrics.jsonl', metrics.write, (json, 'dumps')),
        ('tensorboard', lambda line: board.write(1, line), (board._events, 'write_event')),
    ):
        with monkeypatch.context() as full:
            full.setattr(*patched, fail)
            with pytest.raises(UserError, match=f'{path} cannot be written: No space left on device; make room and re'):
                write({'step': 1})
        write({'step': 1})
    metrics.close()
    board.close()


def test_tensorboard_reads_its_file(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as loading

    for first, values in ((0, [3.0, 2.0, 1.0]), (2, [5.0])):
        board = Board(tmp_path / str(first), first)
        for step, value in enumerate(values, first):
            board.write(step, {'train/loss': value})
        board.close()
        events = loading.EventAccumulator(str(tmp_path / str(first))).Reload().Scalars('train/loss')
        assert [(event.step, event.value) for event in events] == list(enumerate(values, first))
