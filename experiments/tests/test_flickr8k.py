import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import command
from benchmarks.results import DOCS
from experiments import catalog, cca, flickr8k, held_out, intervals
from jitm import configs
from jitm.commands import cli
from jitm.config import build as config_lib
from jitm.config import schema
from jitm.configs.common import first_stage
from jitm.data import precomp
from jitm.data.text import token_vectors
from jitm.data.text.vocabularies import describe_vocabulary
from jitm.data.text.word_level import Vocabulary
from jitm.files import hash_json
from jitm.files.packages import PACKAGES
from jitm.report.rows import read_rows
from jitm.training.sections import override
from tests.configs.settings import start


@pytest.mark.needs(PACKAGES['all-MiniLM-L6-v2'].module)
@pytest.mark.slow
@pytest.mark.parametrize('small', [False, True])
def test_every_experiment_on_flickr8k_can_be_trained(tmp_path, small):
    for name in catalog.EXPERIMENTS:
        argv = catalog.command(name, 0, tmp_path, small)
        assert argv[:2] == ['train', '--config']
        flags = dict(flag.removeprefix('--config.').split('=', 1) for flag in argv[5:])
        config = schema.check(override(cli.read_config(argv[2]), flags))
        start(config)


def test_stages_that_are_taken_over_are_the_same():
    for experiment in (experiment for experiment in catalog.EXPERIMENTS.values() if experiment.first_stage):
        other = configs.load(catalog.EXPERIMENTS[experiment.first_stage].config)
        first = configs.load(experiment.config).stages.first.to_dict()
        assert first == (other.stages.first.to_dict() if other.stages else first_stage(other))


@pytest.mark.slow
@pytest.mark.parametrize('size', ['flickr8k', 'flickr8k_small'])
def test_rows_are_of_the_terms_of_their_experiments(size):
    rows = read_rows(DOCS / f'{size}.jsonl')
    assert {*map(catalog.name_of, rows)} <= catalog.EXPERIMENTS.keys()
    for name, experiment in catalog.EXPERIMENTS.items():
        config = config_lib.flatten(configs.load(experiment.config).to_dict()) | experiment.flags
        folder = str(catalog.scored(catalog.directory(Path('runs', size), name, 0), name))
        row = config_lib.flatten(rows[folder]['config']) if folder in rows else {}
        for key in row.keys() & config.keys():
            assert not key.startswith('terms.') or row[key] == config[key], (name, key)


def test_experiments_without_a_row_follow_the_runs_they_read(tmp_path, monkeypatch):
    rows = tmp_path / 'rows.jsonl'
    runs = flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, rows)
    assert runs == [('mean_sum_max', 1), ('vsepp_rm_oas', 1), ('mean_sum', 1)]
    argv = catalog.command('vsepp_rm_oas', 1, tmp_path)
    assert f'--config.members.anchor.init_from={tmp_path}/mean_sum_max_s1' in argv
    monkeypatch.setattr(flickr8k, 'read_rows', lambda path: {str(tmp_path / 'mean_sum_s1'): {}})
    rows.touch()
    assert flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, rows) == runs[:2]
    assert flickr8k.pending(['vsepp_rm_oas', 'mean_sum'], [1], tmp_path, None) == runs


def test_small_experiments_are_small_in_both_stages(tmp_path):
    small = {'model.embed_dim=256', 'model.text.recurrent=False'}
    argv = catalog.command('aoq_offtri', 0, tmp_path, small=True)
    assert {f'--config.{prefix}{key}' for prefix in ('', 'stages.first.') for key in small} <= set(argv)
    assert not any(key in flag for flag in catalog.command('aoq_offtri', 0, tmp_path) for key in small)


@pytest.mark.slow
def test_flickr8k_lists_all_groups_and_refuses_other_names(tmp_path, measured, capsys):
    rows = measured('flickr8k', package='experiments')
    assert {row['group'] for row in rows} == catalog.GROUPS.keys()
    assert {row['name'] for row in rows} == catalog.EXPERIMENTS.keys()
    with pytest.raises(SystemExit):
        command.main('experiments', ['flickr8k', 'lossess', '--seeds', '0'])
    assert 'lossess: neither a group nor an experiment' in capsys.readouterr().err


def test_small_experiments_keep_the_gru_where_words_are_not_averaged(tmp_path):
    assert not any('recurrent' in flag for flag in catalog.command('fc_max', 0, tmp_path, small=True))


def test_cca_finds_the_captions_of_linear_features(tmp_path, measured):
    """The features of an image count the words of its captions; 20 directions find all, and noise finds few."""
    rng = np.random.default_rng(0)
    for folder, signal in (('words', 1.0), ('noise', 0.0)):
        (tmp_path / folder).mkdir()
        for split, images in (('train', 300), ('dev', 40)):
            words = rng.integers(20, size=(images, 4))
            counts = np.stack([np.bincount(row, minlength=20) for row in words])
            features = signal * counts[:, None] + 0.01 * rng.normal(size=(images, 3, 20))
            np.save(tmp_path / folder / f'{split}_ims.npy', features.astype(np.float32))
            captions = '\n'.join(' '.join(f'w{chr(97 + word)}' for word in row) for row in words)
            (tmp_path / folder / f'{split}_caps.txt').write_text(captions + '\n')
    (found,), (nothing,) = (
        measured('cca', f'--data_root={tmp_path}/{folder}', package='experiments') for folder in ('words', 'noise')
    )
    assert float(found['rsum']) > 540
    assert float(nothing['rsum']) < 200


def test_a_kept_cca_is_a_control_of_every_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, 'CCA', tmp_path / 'cca.jsonl')
    for name, order in (('right', [0, 1, 2]), ('wrong', [1, 2, 0])):
        cca.keep(name, np.eye(3, dtype=np.float32)[order], np.arange(3), {})
    runs = catalog.read_runs('flickr8k_small')
    assert {seed for name, seed in runs if name == 'right'} == {seed for _, seed in runs}
    assert runs['right', 0]['metrics']['i2t/recall@1'] == 100
    assert runs['wrong', 0]['metrics']['i2t/recall@1'] == 0
    compared = [*intervals.rows_of('right', 'wrong', runs, 'flickr8k_small')]
    assert compared[0]['difference'] == runs['right', 0]['metrics']['rsum'] - runs['wrong', 0]['metrics']['rsum']


def test_held_out_images_select_and_dev_is_reported(tmp_path, measured):
    cells = np.arange(4 * 16 * 3, dtype=np.float32).reshape(4, 16, 3)
    grid = cells.reshape(4, 4, 4, 3)
    np.testing.assert_allclose(held_out.pooled(cells, 2)[:, 1], grid[:, :2, 2:].mean((1, 2)))
    for split, images in (('train', 502), ('dev', 4)):
        np.save(tmp_path / f'{split}_ims.npy', np.resize(cells, (images, 16, 3)))
        lines = ''.join(f'photo {image} of {split}\n' for image in range(images) for _ in range(5))
        (tmp_path / f'{split}_caps.txt').write_text(lines)
    measured('held_out', f'--data_root={tmp_path}', '--pool=2', f'--out={tmp_path}/out', package='experiments')
    train, dev, test = (precomp.load(split, root=str(tmp_path / 'out')) for split in ('train', 'dev', 'test'))
    assert (train.num_images, dev.num_images, test.num_images) == (2, 500, 4)
    assert not {*train.captions} & {*dev.captions}
    assert test.regions.shape == (4, 4, 3)
    original = precomp.load('train', root=str(tmp_path))
    image = int(dev.captions[0].split()[1])
    np.testing.assert_allclose(dev.regions[0], held_out.pooled(original.regions[image : image + 1], 2)[0])


def test_held_out_captions_keep_the_vectors_of_their_tokens(tmp_path, measured):
    encoder = dict.fromkeys(precomp.ENCODED_BY, 'network')
    texts = dict.fromkeys(token_vectors.ENCODED_BY, 'network')
    manifest = {}
    for split, images in (('train', 502), ('dev', 4)):
        captions = [f'photo {image} of {split}' for image in range(images)]
        vocabulary = Vocabulary.build(captions)
        texts.update(captions=hash_json(captions), vocabulary=vocabulary.hash)
        manifest[split] = encoder | {'texts': dict(texts)}
        np.save(tmp_path / f'{split}_ims.npy', np.arange(images, dtype=np.float32)[:, None])
        (tmp_path / f'{split}_caps.txt').write_text('\n'.join(captions))
        np.save(tmp_path / f'{split}_txts.npy', np.repeat(np.arange(images), 2)[:, None].astype(np.float32))
        np.save(tmp_path / f'{split}_lengths.npy', np.full(images, 2, np.int32))
    manifest['train']['texts']['vocabulary'] = vocabulary.hash
    (tmp_path / 'encoded.json').write_text(json.dumps(manifest))
    (tmp_path / 'vocabulary.json').write_text(json.dumps(describe_vocabulary(vocabulary)))
    measured('held_out', f'--data_root={tmp_path}', '--token_vectors', f'--out={tmp_path}/out', package='experiments')
    dev = precomp.load('dev', root=str(tmp_path / 'out'), token_vectors=True)
    numbers = [int(caption.split()[1]) for caption in dev.captions]
    assert dev.token_vectors.values[:, 0].tolist() == [number for number in numbers for _ in range(2)]
