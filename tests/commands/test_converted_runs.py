"""What every command does with a run, it does with a converted checkpoint of the authors."""

import json

import chex
import numpy as np
import pytest

import jitm
from jitm.commands.cli import main
from jitm.data import scenes
from jitm.data.text.word_level import Vocabulary
from jitm.runs.run import load_run
from jitm.training.setup import set_up
from tests.support import authors as theirs

SIZES = {'train': 16, 'dev': 10, 'test': 10}
DATA = [f'--config.data.{name}_images={count}' for name, count in SIZES.items()]
REGION_FEATURES = 200
FILES = {'scan': 'scan:t2i,avg,scenes', 'vsepp': 'demo'}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """The run directories of a SCAN and a VSE++."""
    folder = tmp_path_factory.mktemp('converted')
    words = Vocabulary.build(scenes.load('train', train_images=SIZES['train']).captions, min_count=1).words
    vocabulary = theirs.write_vocabulary(folder, words)
    made = {}
    for name, file in FILES.items():
        tensors = theirs.tensors_of(name, file, REGION_FEATURES, len(words))
        path = theirs.write_checkpoint(folder / f'{name}.pth.tar', tensors, {'data_name': 'f30k_precomp'})
        made[name] = folder / name
        arguments = ['--vocabulary', vocabulary, '--out', str(made[name]), '--config', file, *DATA]
        assert main(['convert', '--from', name, path, *arguments]) == 0
    return made


@pytest.mark.slow
def test_it_is_evaluated_explained_mined_and_scored(runs, tmp_path, capsys):
    workdir = str(runs['scan'])
    assert main(['eval', '--workdir', workdir, '--split', 'test', '--explain', '1']) == 0
    report = json.loads((runs['scan'] / 'eval' / 'test' / 'metrics.json').read_text())
    assert report['metrics']['rsum'] > 0
    output = capsys.readouterr().out
    assert 'rsum' in output
    assert 'trained on f30k_precomp\n' in output
    mine = ['mine', '--workdir', workdir, '--out', str(tmp_path / 'mined'), '--top_h_texts', '5', '--top_h_images', '3']
    assert main(mine) == 0
    assert np.load(tmp_path / 'mined' / 'i2t_train.npy').shape == (SIZES['train'], 5)
    assert main(['convert', '--to', 'safetensors', workdir, '--out', str(tmp_path / 'hub')]) == 0
    assert load_run(tmp_path / 'hub').data_name == 'f30k_precomp'
    run = jitm.load(workdir)
    data = run.load_data('test')
    scores = np.asarray(run.similarity(run.encode_image(data.images), run.encode_text(data.captions)))
    assert scores.shape == (SIZES['test'], len(data.captions))
    assert np.std(scores) > 0


def test_its_images_are_searched(runs, capsys):
    assert main(['search', '--workdir', str(runs['vsepp']), '--split', 'test', 'a red circle']) == 0
    assert 'test-0000' in capsys.readouterr().out


def with_anchor(workdir):
    """The config of a run that is fine-tuned next to itself as a frozen anchor, as in OAS."""
    config = load_run(workdir).config
    target = {'rule': 'gradient', 'learn_from': ['anchor'], 'init_from': str(workdir)}
    boost = dict(config['terms']['ranking'], loss='anchored.absolute_max', alpha=0.5)
    return config | {
        'members': {'anchor': {'rule': 'frozen', 'init_from': str(workdir)}, 'target': target},
        'terms': config['terms'] | {'boost': boost},
    }


@pytest.mark.slow
def test_it_is_fine_tuned_and_an_anchor(runs):
    members = set_up(with_anchor(runs['scan'])).initial_state().members
    for member in members.values():
        chex.assert_trees_all_equal(member.params, load_run(runs['scan']).variables['params'])
