import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from jitm.errors import UserError
from jitm.files import locked
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.checkpoint_files import MANIFEST, damaged_file, held_files

RUN = {'config': {'a': 1}, 'vocabulary': ['<pad>', 'ö']}


def make_state(value):
    params = {'kernel': jnp.full((3, 2), float(value)), 'empty': {}}
    return {'step': jnp.int32(value), 'params': params, 'optimizer': optax.adam(1.0).init(params)}


def assert_equal(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for leaf, second in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, second)
        assert leaf.dtype == second.dtype


def save_all(checkpoints, rsums):
    for step, rsum in rsums.items():
        checkpoints.save(make_state(step), step, RUN, None if rsum is None else {'rsum': rsum})


def damage(checkpoints, step):
    folder = checkpoints.folder / str(step)
    path = max(folder.rglob('*'), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_state_is_restored(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(make_state(0)) is None
        save_all(checkpoints, {7: None})
    with Checkpoints(tmp_path) as checkpoints:
        state, run = checkpoints.restore_latest(make_state(0))
    assert_equal(make_state(7), jax.tree.map(jnp.asarray, state))
    assert run == RUN


def test_two_latest_and_the_best_are_kept(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {0: 1.0, 5: None, 10: 9.0, 15: None, 20: 3.0, 25: None, 30: 2.0})
        assert checkpoints.steps() == [10, 25, 30]
        assert checkpoints.best_step() == 10
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.best_step() == 10
        save_all(checkpoints, {35: 9.0, 40: 9.0})
        assert checkpoints.steps() == [35, 40]
        assert checkpoints.best_step() == 40, 'of equals the later one'


def test_flipped_bit_falls_back_to_the_previous_checkpoint(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0, 2: 5.0, 3: 4.0})
        assert damaged_file(checkpoints.folder / '3') is None
        damage(checkpoints, 3)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.set_aside_damaged()
        state, _ = checkpoints.restore_latest(make_state(0))
        assert int(state['step']) == 2
        assert 'is damaged: its checkpoint is moved to' in caplog.text
        assert (tmp_path / 'damaged' / '3_0' / 'manifest.json').exists()
        assert checkpoints.steps() == [2]
        save_all(checkpoints, {3: 6.0})
        assert int(checkpoints.restore_latest(make_state(0))[0]['step']) == 3
        assert checkpoints.best_step() == 3


def test_best_checkpoint_is_never_replaced_by_another(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0, 2: 5.0, 3: 4.0, 4: 4.5})
        damage(checkpoints, 2)
        assert checkpoints.best_step() == 2
        with pytest.raises(UserError, match=r'checkpoints/2/.* is damaged, .* whole one with --step: 3, 4$'):
            checkpoints.read(checkpoints.best_step())
        with pytest.raises(
            UserError, match=r'is damaged, and its checkpoint is the best one; restore it, or move .*/2 away'
        ):
            checkpoints.set_aside_damaged()
        assert checkpoints.steps() == [2, 3, 4]
        shutil.rmtree(checkpoints.folder / '2')
        with pytest.raises(UserError, match=r'checkpoints/2 is missing; restore it, or name .* with --step: 3, 4$'):
            checkpoints.read(checkpoints.best_step())
        checkpoints.set_aside_damaged()
        assert 'checkpoints/2 is missing: the best of the others counts' in caplog.text
        save_all(checkpoints, {5: 4.2})
        assert checkpoints.best_step() == 4


def remove_when_checked(monkeypatch, part):
    """Removes a part of each checkpoint once it was checked, as its run does meanwhile."""
    check = Checkpoints.check

    def check_and_remove(checkpoints, step):
        run = check(checkpoints, step)
        shutil.rmtree(checkpoints.folder / str(step) / part)
        return run

    monkeypatch.setattr(Checkpoints, 'check', check_and_remove)


@pytest.mark.parametrize('part', ['', 'state'])
def test_checkpoint_that_is_read_stays(tmp_path, monkeypatch, part):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0})
        remove_when_checked(monkeypatch, part)
        tree, _ = checkpoints.read(1)
    np.testing.assert_array_equal(tree['params']['kernel'], np.full((3, 2), 1))
    assert [path.name for path in tmp_path.iterdir()] == ['checkpoints']


def test_half_removed_checkpoint_is_one_sentence_without_links(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError('no links')

    monkeypatch.setattr(os, 'link', refuse)
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0})
        remove_when_checked(monkeypatch, 'state')
        sentence = 'checkpoints/1 was removed while it was read, since its run trains; repeat'
        with pytest.raises(UserError, match=sentence):
            checkpoints.read(1)


def test_save_that_was_not_finished_is_removed(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0, 2: 5.0})
        (checkpoints.folder / '2' / 'manifest.json').unlink()
        with pytest.raises(
            UserError, match=r'checkpoints/2 is saved now, or .* killed while it was; repeat the command, or name .*: 1'
        ):
            checkpoints.best_step()
        checkpoints.set_aside_damaged()
        assert checkpoints.steps() == [1]
        with pytest.raises(UserError, match='checkpoints/2 is missing; restore it, or name a whole one with --step: 1'):
            checkpoints.read(2)
    assert not (tmp_path / 'damaged').exists()


def test_kill_while_an_old_checkpoint_is_removed_damages_nothing(tmp_path, monkeypatch, caplog):
    def killed(folder, **options):
        for path in Path(folder).rglob('*'):
            if path.is_file():
                path.unlink()
        raise KeyboardInterrupt

    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0, 2: 5.0, 3: 2.0})
        with monkeypatch.context() as patch:
            patch.setattr(shutil, 'rmtree', killed)
            with pytest.raises(KeyboardInterrupt):
                save_all(checkpoints, {4: 3.0})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.set_aside_damaged()
        assert checkpoints.steps() == [2, 3]
        assert [path.name for path in checkpoints.folder.iterdir() if not path.name.isdecimal()] == []
    assert not (tmp_path / 'damaged').exists()
    assert caplog.text == ''


@pytest.mark.parametrize('part', ['manifest', 'half a manifest', 'file', 'everything'])
def test_incomplete_checkpoints_are_skipped(tmp_path, part):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: None, 2: None})
        folder = checkpoints.folder / '2'
        (folder / 'manifest.json').unlink()
        if part == 'half a manifest':
            (folder / 'manifest.json').write_text('{"state')
        if part == 'file':
            next(path for path in (folder / 'state').rglob('*') if path.is_file()).unlink()
        if part == 'everything':
            damage(checkpoints, 1)
            assert checkpoints.restore_latest(make_state(0)) is None
        else:
            assert int(checkpoints.restore_latest(make_state(0))[0]['step']) == 1


def test_full_disk_is_one_sentence_and_leaves_the_checkpoints(tmp_path, monkeypatch, capfd):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0})
        sentence = 'checkpoints/2 cannot be written: No space left on device; make room and repeat the command'
        with monkeypatch.context() as full:
            full.setattr(shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(100, 100, 0))
            with pytest.raises(UserError, match=sentence):
                save_all(checkpoints, {2: 2.0})
        with monkeypatch.context() as filled_meanwhile:

            def fail(*args, **keywords):
                raise ValueError("RESOURCE_EXHAUSTED: Error writing 'step': No space left [os_error_code='28']")

            filled_meanwhile.setattr(ocp.CheckpointManager, 'save', fail)
            with pytest.raises(UserError, match=sentence):
                save_all(checkpoints, {2: 2.0})
        assert checkpoints.whole_steps() == [1]
        assert capfd.readouterr().err == ''
        save_all(checkpoints, {2: 2.0})
        assert checkpoints.whole_steps() == [1, 2]


def test_parts_of_a_killed_save_are_removed(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {1: 1.0})
        shutil.copytree(checkpoints.folder / '1', checkpoints.folder / '3.orbax-checkpoint-tmp')
        checkpoints.set_aside_damaged()
        assert [path.name for path in checkpoints.folder.iterdir()] == ['1']


def test_reading_does_not_write(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == []
        assert checkpoints.best_step() is None
    assert not list(tmp_path.iterdir())


def test_links_of_killed_readers_are_removed(tmp_path):
    """A reader holds a lock on its hard links of a checkpoint; what is not locked was left by one that was killed."""
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, {3: 1.0})
    left, read, foreign = (tmp_path / f'.reading_{name}' for name in ('killed', 'reading', 'list'))
    for links in (left, read):
        shutil.copytree(tmp_path / 'checkpoints', links, copy_function=os.link)
    foreign.mkdir()
    (foreign / 'thesis.tex').touch()
    with locked(read, ''), Checkpoints(tmp_path) as checkpoints, held_files(checkpoints.folder / '3') as held:
        checkpoints.read(3)
        assert (held / MANIFEST).exists()
        assert {path.name for path in tmp_path.glob('.reading_*')} == {read.name, foreign.name, held.parent.name}
    assert os.listdir(foreign) == ['thesis.tex']
