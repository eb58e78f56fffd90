"""Functions and classes of the user's own modules: found, and refused by one sentence with file and line."""

import sys

import pytest
from flax import linen as nn

from jitm.config import names
from jitm.config.section import own_names
from jitm.errors import UserError
from jitm.models.make import SECTIONS, make_model

LOSSES = """
import jax.numpy as jnp
from jitm.losses import max_of_hinges

SCALE = 2.0


def my_hinge(scores, positives, negatives, *, gamma=SCALE):
    return jnp.sum(scores, axis=1) * gamma
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with own losses, which is not on Python's path."""
    (tmp_path / 'own_losses.py').write_text(LOSSES)
    (tmp_path / 'more').mkdir()
    (tmp_path / 'more' / 'losses.py').write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [path for path in sys.path if path])
    loaded = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - loaded:
        if name.startswith(('own_', 'more', 'losses_')):
            del sys.modules[name]


def resolve(name, own=callable):
    return names.resolve('jitm.losses', name, where='terms.ranking.loss', own=own)


@pytest.mark.parametrize('name', ['own_losses.my_hinge', 'more.losses.my_hinge', 'more/losses.py:my_hinge'])
def test_own_functions_are_found_in_the_working_directory(folder, name):
    path = list(sys.path)
    assert resolve(name).__name__ == 'my_hinge'
    assert resolve(name) is resolve(name)
    assert names.is_own(resolve(name))
    assert sys.path == path


def test_modules_with_a_name_near_one_of_jitm_are_found(folder):
    (folder / 'rankings.py').write_text(LOSSES)
    assert names.is_own(resolve('rankings.my_hinge'))
    del sys.modules['rankings']


def test_names_of_jitm_come_first(folder):
    (folder / 'ranking.py').write_text('raise SystemExit(1)')
    assert not names.is_own(resolve('ranking.max_of_hinges'))


@pytest.mark.parametrize(
    ('name', 'sentence'),
    [
        ('own_losses.my_hing', "own_losses has no 'my_hing', did you mean 'my_hinge'?"),
        (
            'own_losses.SCALE',
            'a loss is a function, a source a function of split, a model a class of flax.linen.Mod',
        ),
        ('own_losses.max_of_hinges', 'name one of your own'),
        ('own_loss.my_hinge', 'there is no module jitm.losses.own_loss, and no own_loss in {folder}'),
        ('more.loss.my_hinge', 'there is no module jitm.losses.more.loss, and no more.loss in {folder}'),
        ('rankin.my_hinge', "no module jitm.losses.rankin, did you mean 'ranking'?"),
        ('more/losses.my_hinge', 'a function of a file has the form path/to/FILE.py:NAME'),
        ('less/losses.py:my_hinge', 'there is no file less/losses.py'),
        ('own_broken.loss', 'cannot be imported: NameError in line 3 of {folder}/own_broken.py: x = y: name'),
        ('own_broken.py:loss', 'cannot be imported: NameError in line 3 of {folder}/own_broken.py: x = y: name'),
        ('own_syntax.loss', 'cannot be imported: SyntaxError in line 1 of {folder}/own_syntax.py: '),
        ('own_needs.loss', 'cannot be imported: ModuleNotFoundError in line 1 of {folder}/own_needs.py: import absent'),
        ('own_exits.loss', 'cannot be imported: SystemExit in line 1 of {folder}/own_exits.py: '),
    ],
)
def test_mistakes_in_own_modules_are_one_sentence(folder, name, sentence):
    (folder / 'own_broken.py').write_text('import math\n\nx = y\n')
    (folder / 'own_syntax.py').write_text('def loss(:\n')
    (folder / 'own_needs.py').write_text('import absent_package\n')
    (folder / 'own_exits.py').write_text('raise SystemExit(1)\n')
    for _ in range(2):  # a module that failed is not kept
        with pytest.raises(UserError) as caught:
            resolve(name)
        message = str(caught.value)
        assert message.startswith(f"config key 'terms.ranking.loss' is '{name}', but ")
        assert sentence.format(folder=folder) in message
        assert '\n' not in message


def test_own_modules_are_not_imported_for_others(folder):
    (folder / 'own_evil.py').write_text('open("ran", "w")\n')
    for name in ('own_evil.loss', 'own_evil.py:loss', 'os.system'):
        with pytest.raises(UserError, match=r'there is no module jitm\.losses'):
            resolve(name, own=None)
    assert not (folder / 'ran').exists()


def test_names_of_others_need_modules_that_the_user_imported(folder):
    def of_other(name):
        return names.resolve('jitm.losses', name, where='model.name', own=callable, imports=False)

    for name in ('own_losses.my_hinge', 'more/losses.py:my_hinge', 'elsewhere/own_losses.py:my_hinge'):
        module = names.module_of(name)
        with pytest.raises(UserError, match=f'{module} is not in jitm: if you trust it, give --import {module}, in Py'):
            of_other(name)
    assert 'own_losses' not in sys.modules
    names.import_own('own_losses')
    assert of_other('own_losses.my_hinge') is of_other('elsewhere/own_losses.py:my_hinge')
    names.import_own('more/losses.py')
    assert of_other('more/losses.py:my_hinge').__module__.startswith('losses_')
    for wrong in ('own_absent', 'own_absent.py'):
        with pytest.raises(UserError, match=f"--import is '{wrong}', but there is no (module|file) {wrong}"):
            names.import_own(wrong)


def test_of_two_files_of_one_name_the_stored_one_is_taken(folder):
    def of_other(name):
        return names.resolve('jitm.losses', name, where='model.name', own=callable, imports=False)

    for part in 'ab':
        (folder / part).mkdir()
        (folder / part / 'own_twice.py').write_text(LOSSES)
    names.import_own('a/own_twice.py')
    assert of_other('b/own_twice.py:my_hinge') is of_other('a/own_twice.py:my_hinge')  # the only one: it has moved
    names.import_own('b/own_twice.py')
    files = [of_other(f'{part}/own_twice.py:my_hinge').__code__.co_filename for part in 'ab']
    assert files == [f'{folder}/{part}/own_twice.py' for part in 'ab']
    ambiguous = f'may be {folder}/a/own_twice.py and {folder}/b/own_twice.py: import one of them'
    for name in ('c/own_twice.py:my_hinge', 'c.own_twice.my_hinge'):
        with pytest.raises(UserError, match=ambiguous):
            of_other(name)
    (folder / 'own_link.py').symlink_to(folder / 'a' / 'own_twice.py')
    names.import_own('own_link.py')
    assert names.file_of('elsewhere/own_link.py') == folder / 'own_link.py'
    assert names.file_of('own_absent.py') is None


MODELS = """
from flax import linen as nn


class Encoder(nn.Module):
    embed_dim: int
    width: int = 3
    reads = ('regions',)


class Model(nn.Module):
    image: nn.Module
    scale: float = 1.0


def helper():
    pass
"""


def make(model, own=True):
    return make_model({'name': 'own_models.Model', **model}, 10, own=own, imports=True)


def test_own_models_are_made_of_own_modules_and_those_of_jitm(folder):
    (folder / 'own_models.py').write_text(MODELS)
    encoder = {'name': 'own_models.Encoder'}
    model = make({'embed_dim': 8, 'scale': 2.0, 'image': encoder})
    assert (model.image.embed_dim, model.image.width, model.scale) == (8, 3, 2.0)
    assert isinstance(model, nn.Module)
    section = {'name': 'own_models.Model', 'image': {'name': 'text.GRUEncoder', 'word_dim': 4}}
    assert own_names({'model': section}, SECTIONS) == {'model.name': 'own_models.Model'}
    sections = {'model': {'name': 'vse.VSE', 'image': encoder}, 'members': {'target': {'model': section}}}
    named = {'model.image.name': 'own_models.Encoder', 'members.target.model.name': 'own_models.Model'}
    assert own_names(sections, SECTIONS, imports=False) == named


@pytest.mark.parametrize(
    ('model', 'sentence'),
    [
        ({'image': {'name': 'own_models.Encoder'}}, "'model.image.embed_dim' is missing and has no default"),
        ({'image': {'name': 'own_models.helper'}}, 'a model a class of flax.linen.Module'),
        ({'name': 'own_models.nn'}, 'a model a class of flax.linen.Module'),
        ({'name': 'os.system'}, 'a model a class of flax.linen.Module'),
        ({'image': {'name': 'own_models.Encoder', 'embed_dim': 2}, 'embed_dim': 2}, "'model.embed_dim' is unknown"),
        ({'image': {'name': 'own_models.Encoder'}, 'embed_dim': 2, 'vocab_size': 2}, "'model.vocab_size' is unknown"),
    ],
)
def test_mistakes_in_own_models_are_one_sentence(folder, model, sentence):
    (folder / 'own_models.py').write_text(MODELS)
    with pytest.raises(UserError, match=sentence):
        make(model)
