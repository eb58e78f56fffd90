"""A published CLIP or SigLIP becomes a run directory; tests/importers tests the parameters."""

import json

import chex
import jax
import numpy as np
import pytest
from PIL import Image

import jitm
from jitm.commands.cli import main
from jitm.data.text.pieces import BPE
from jitm.devices import parallel
from jitm.importers.clip_weights import load_clip
from jitm.runs.run import load_run
from jitm.serving.loaded_run import LoadedRun
from jitm.training.setup import set_up
from tests.support import blip, siglip
from tests.support import clip as published

DATA = [f'--config.data.{name}_images={count}' for name, count in (('train', 16), ('dev', 10), ('test', 10))]
SIZE, LENGTH = 64, 16  # pixels of scenes, and ids of captions


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> str:
    """The folder of a published CLIP of a tiny size, which cuts the captions of scenes."""
    return published.write_published(tmp_path_factory.mktemp('published') / 'clip', SIZE, LENGTH)


@pytest.fixture(scope='module')
def converted(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp('runs') / 'clip'
    arguments = ['--from', 'clip', folder, '--out', str(workdir), '--config', 'clip:scenes', *DATA]
    assert main(['convert', *arguments]) == 0
    return workdir


def test_the_run_holds_the_published_model(folder, converted):
    run = load_run(converted)
    chex.assert_trees_all_equal(run.variables, load_clip(folder).variables)
    pieces = BPE.of(published.MERGES, LENGTH)
    assert (run.step, run.vocabulary, run.image_size) == (0, pieces, (SIZE, SIZE))
    assert run.config['candidates']['same_image'] == 'ignored'


@pytest.mark.slow
def test_it_is_evaluated_by_the_ordinary_command(converted, capsys):
    assert main(['eval', '--workdir', str(converted), '--split', 'test']) == 0
    assert 'rsum' in capsys.readouterr().out
    run = jitm.load(converted)
    data = run.load_data('test')
    scores = np.asarray(run.similarity(run.encode_image(data.images), run.encode_text(data.captions)))
    assert scores.shape == (10, len(data.captions))
    assert max(len(run.run.vocabulary.encode(caption)) for caption in data.captions) == LENGTH
    assert 0.01 < scores.std() < 1


def test_a_published_folder_is_evaluated_as_the_run_itself(converted, tmp_path):
    folders = [converted, tmp_path / 'hub', tmp_path / 'again']
    reports = []
    for folder, source in zip(folders, (None, *folders), strict=False):
        if source:
            assert main(['convert', '--to', 'safetensors', str(source), '--out', str(folder)]) == 0
        assert main(['eval', '--workdir', str(folder), '--split', 'test']) == 0
        reports.append(json.loads((folder / 'eval' / 'test' / 'metrics.json').read_text()))
    first, *later = (report['metrics'] for report in reports)
    assert later == [first, first]
    assert f'rsum {first["rsum"]:.1f}' in (tmp_path / 'hub' / 'README.md').read_text()


def test_published_names_are_written_and_read_again(converted, tmp_path):
    assert main(['convert', '--to', 'clip_transformers', str(converted), '--out', str(tmp_path / 'theirs')]) == 0
    assert main(['convert', '--from', 'clip', str(tmp_path / 'theirs'), '--out', str(tmp_path / 'again')]) == 0
    first, second = (load_run(workdir) for workdir in (converted, tmp_path / 'again'))
    chex.assert_trees_all_equal(first.variables, second.variables)
    assert (first.config['model'], first.vocabulary) == (second.config['model'], second.vocabulary)


@pytest.mark.slow
def test_training_is_initialized_from_it_but_does_not_resume_in_it(converted, folder, capsys):
    arguments = ['--config', 'clip:scenes', *DATA, '--workdir', str(converted)]
    assert main(['train', *arguments]) == 2
    assert 'is not a run of jitm' in capsys.readouterr().err
    config = load_run(converted).config
    config = config | {'members': {'target': {'rule': 'gradient', 'learn_from': (), 'init_from': str(converted)}}}
    config['model']['image']['dtype'] = 'bfloat16'
    state = set_up(config).initial_state()
    chex.assert_trees_all_equal(state.members['target'].params, load_clip(folder).variables['params'])


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--out', 'NEW', '--config', 'scan'], 'the model reads pixels, which the'),
        (
            ['--out', 'NEW', '--config', 'vsepp:vsepp,squeezenet,frozen,f8k'],
            "with data.interpolation 'bicubic': give --config clip, with options or without",
        ),
        (['--out', 'RUN'], 'is a converted run already: choose a new folder'),
        (['--out', 'PATH'], 'is not empty and is not a converted run of jitm; choose a new'),
        (['--out', 'NEW', '--vocabulary', 'x.gz'], 'x.gz cannot be read'),
    ],
)
def test_wrong_arguments_are_one_sentence(folder, converted, tmp_path, capsys, arguments, message):
    places = {'PATH': folder, 'NEW': str(tmp_path / 'new'), 'RUN': str(converted)}
    words = [places.get(argument, argument) for argument in arguments]
    assert main(['convert', '--from', 'clip', folder, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'new').exists()


def test_the_default_config_gets_the_size_of_the_images(folder, tmp_path, capsys):
    assert main(['convert', '--from', 'clip', folder, '--out', str(tmp_path / 'run')]) == 0
    data = load_run(tmp_path / 'run').config['data']
    assert (data['source'], data['image_size'], data['short_side']) == ('photos.load', SIZE, SIZE)


@pytest.mark.slow
def test_a_siglip_is_evaluated_searched_and_trained(tmp_path, capsys):
    sizes = {'vision_config.image_size': SIZE, 'text_config.max_position_embeddings': 32}
    folder, _ = siglip.write(tmp_path / 'siglip', siglip.siglip_config(sizes))
    run = str(tmp_path / 'run')
    arguments = ['--from', 'siglip', folder, '--out', run, '--config', 'siglip:scenes', *DATA]
    assert main(['convert', *arguments]) == 0, capsys.readouterr().err
    assert main(['eval', '--workdir', run, '--split', 'test']) == 0, capsys.readouterr().err
    assert main(['search', '--workdir', run, '--split', 'test', 'a dog, a ball']) == 0, capsys.readouterr().err
    config = load_run(run).config
    assert (config['model']['text']['max_length'], config['vocabulary']['path']) == (32, f'{folder}/spiece.model')
    config['members']['target']['init_from'] = run
    config['candidates'] = {'source': 'in_chunks', 'same_image': 'ignored', 'queries': 3}
    config |= {'batch_size': 8, 'epochs': 1}
    assert config['terms']['ranking']['loss'] == 'ranking.sigmoid_contrastive'
    setup = set_up(config)
    state = parallel.put_state(setup.initial_state())
    batch = parallel.put_batch(setup.make_batch(0))
    _, metrics = setup.train_step(state, batch)
    assert metrics['finite']
    assert 0 < metrics['target/loss'] < 100


@pytest.mark.slow
def test_a_siglip_reads_whole_photos(tmp_path):
    folder, _ = siglip.write(tmp_path / 'siglip', siglip.siglip_config())
    assert main(['convert', '--from', 'siglip', folder, '--out', str(tmp_path / 'run')]) == 0
    run = jitm.load(tmp_path / 'run')
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    size = (siglip.SIZE, siglip.SIZE)
    resized = np.asarray(photo.resize(size, Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(run.encode_image([photo]), run.encode_image(resized[None]))
    vectors = run.encode_text(['a dog', 'A dog!', 'a ball'])
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert abs(vectors[0] - vectors[2]).max() > 0.01


@pytest.mark.slow
def test_a_blip_reranks_its_own_results(tmp_path, capsys):
    folder = blip.write_published(tmp_path / 'blip', SIZE, max_length=40)
    run = str(tmp_path / 'run')
    arguments = ['--from', 'blip', folder, '--out', run, '--config', 'clip:scenes', *DATA]
    assert main(['convert', *arguments]) == 0, capsys.readouterr().err
    config = load_run(run).config
    assert (config['data']['source'], config['vocabulary']['path']) == ('scenes.load', f'{folder}/vocab.txt')
    assert main(['eval', '--workdir', run, '--split', 'test']) == 0, capsys.readouterr().err
    top = ['--split', 'test', '--top_m', '10']
    for words, name in (([], 'top10'), (['--add'], 'top10_added')):
        assert main(['eval', '--workdir', run, *top, *words]) == 0, capsys.readouterr().err
        report = json.loads((tmp_path / 'run' / 'eval' / f'test_{name}' / 'metrics.json').read_text())
        assert report['protocol']['shortlist']['runs'][0]['workdir'] == run

    first = jitm.load(run)
    caption = 'a red ring above a blue square'
    data = first.load_data('test')
    second = LoadedRun(first.run.reranker)
    cosines, logits = (
        model.similarity(model.encode_image(data.images), model.encode_text([caption]))[:, 0]
        for model in (first, second)
    )
    best = np.argsort(-cosines, kind='stable')[:5]
    for words, scores in (([], logits), (['--add'], logits + cosines)):
        flags = ['--workdir', run, '--split', 'test', '--rerank', run, '--top_m', '5', '--top_k', '4', '--json', *words]
        capsys.readouterr()
        assert main(['search', *flags, caption]) == 0, capsys.readouterr().err
        hits = json.loads(capsys.readouterr().out)['results']
        order = best[np.argsort(-scores[best], kind='stable')][:4]
        assert [hit['name'] for hit in hits] == [data.image_ids[image] for image in order]
        np.testing.assert_allclose([hit['score'] for hit in hits], scores[order], rtol=1e-5)

    # Its vectors are fine-tuned, and the head stays.
    (tmp_path / 'vocab.txt').write_text('\n'.join(blip.WORDS) + '\n')
    config['members']['target']['init_from'] = run
    config['optimizer']['factors'] = dict.fromkeys(('cross_attention', 'cross_norm', 'itm_head'), 0.0)
    config |= {'batch_size': 8, 'epochs': 1, 'vocabulary': {'path': str(tmp_path / 'vocab.txt'), 'min_count': 1}}
    setup = set_up(config)
    initial = setup.initial_state()
    before = jax.device_get(initial.members['target'].params)
    state, metrics = setup.train_step(parallel.put_state(initial), parallel.put_batch(setup.make_batch(0)))
    assert metrics['finite']
    after = jax.device_get(state.members['target'].params)
    chex.assert_trees_all_equal(after['itm_head'], before['itm_head'])
    assert np.any(after['image']['projection']['kernel'] != before['image']['projection']['kernel'])
