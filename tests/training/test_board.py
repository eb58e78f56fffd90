"""Files of curves, as TensorBoard reads them."""

import time

import numpy as np
import pytest

from jitm.training.board import Board


def test_tensorboard_reads_its_file(tmp_path):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    for first, values in ((0, [3.0, 2.0, 0.1]), (127, [5.0, -1e-30])):
        board = Board(tmp_path / str(first), first)
        for step, value in enumerate(values, first):
            board.write(step, {'train/loss': value, 'dev/é' + 150 * 'x': 2 * value})
        board.flush()
        events = accumulator.EventAccumulator(str(tmp_path / str(first))).Reload()
        for name, factor in (('train/loss', 1), ('dev/é' + 150 * 'x', 2)):
            read = [(event.step, event.value) for event in events.Scalars(name)]
            assert read == [(step, np.float32(factor * value)) for step, value in enumerate(values, first)]
        board.close()


def test_a_start_hides_later_steps_of_an_earlier_one(tmp_path):
    loader = pytest.importorskip('tensorboard.backend.event_processing.event_file_loader')
    event = pytest.importorskip('tensorboard.compat.proto.event_pb2')
    Board(tmp_path, 200).close()
    (path,) = tmp_path.iterdir()
    version, start = loader.EventFileLoader(str(path)).Load()
    assert version.file_version == 'brain.Event:2'
    assert (start.step, start.session_log.status) == (200, event.SessionLog.START)
    assert [version.wall_time, start.wall_time] == pytest.approx(2 * [time.time()], abs=3600)
