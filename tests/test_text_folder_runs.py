"""Runs with the text encoder of a folder: trained, frozen, and the source of vectors of tokens."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

import jitm
from jitm.commands import cli
from jitm.data import scenes
from jitm.data.text.vocabularies import tokenize_split
from jitm.encoders.text_network import of_folder
from jitm.errors import UserError
from jitm.runs.run import load_run
from jitm.training import loop
from tests.conftest import make_tiny_config
from tests.support.configs import write_config
from tests.support.runs import draw, make_config, make_head
from tests.support.text_folders import write_folder

pytestmark = pytest.mark.slow
SIZES = {'train': 12, 'dev': 6}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """An MPNet whose pieces are the words of scenes."""
    captions = scenes.load('train', train_images=16).captions
    words = sorted({*' '.join(captions).split()})
    pooling = {'pooling_mode_cls_token': True}
    return write_folder(tmp_path_factory.mktemp('folder') / 'mpnet', words, pooling=pooling, max_position_embeddings=40)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return draw(tmp_path_factory.mktemp('photos') / 'drawn', SIZES)


def test_a_run_does_not_need_its_folder(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / 'mpnet')
    published = load_file(path / 'model.safetensors')['encoder.layer.1.output.dense.bias']
    config = make_tiny_config()
    config['model'] |= {'text': {'name': 'text.BERTEncoder', 'path': str(path)}, 'text_pooling': 'published'}
    config['optimizer'] |= {'factors': {'bert': 0.1}, 'learning_rate': 1e-3}
    config |= {'epochs': 1, 'length_multiple': 36}
    config['terms'].pop('later')
    result = loop.train_and_evaluate(config, tmp_path / 'run')
    assert loop.train_and_evaluate(config, tmp_path / 'run') == result  # resumes
    path.rename(tmp_path / 'moved')
    files = {file: file.read_bytes() for file in (tmp_path / 'run').rglob('*') if file.is_file()}
    with pytest.raises(UserError, match=f'there is no folder {path}: .* put a link to it in its old place'):
        loop.train_and_evaluate(config, tmp_path / 'run')
    config['model']['text']['path'] = str(tmp_path / 'moved')
    with pytest.raises(UserError, match=f'another config .initialize.bert: {path} -> {tmp_path}/moved.; .* old values'):
        loop.train_and_evaluate(config, tmp_path / 'run')
    assert files == {file: file.read_bytes() for file in (tmp_path / 'run').rglob('*') if file.is_file()}
    path.symlink_to(tmp_path / 'moved')
    config['model']['text']['path'] = str(path)
    assert loop.train_and_evaluate(config, tmp_path / 'run') == result
    path.unlink()
    assert cli.main(['eval', '--workdir', str(tmp_path / 'run')]) == 0
    run = jitm.load(tmp_path / 'run')
    assert run.run.config['model']['text_pooling'] == 'first'
    data = run.load_data('dev')
    assert run.search(data.captions[0], run.encode_image(data.images), top_k=3)
    bert = load_run(tmp_path / 'run', 10).variables['params']['text']['bert']
    moved = np.abs(bert['encoder']['block_1']['mlp_out']['bias'] - published).max()
    assert 1e-5 < moved < 10 * 1e-4 * 1.01


def test_a_folder_encodes_the_tokens_of_captions(folder, root, tmp_path, capsys):
    """And the head that trains on them finds the folder again for captions that are typed."""
    config, tokens, folder = make_config(root), tmp_path / 'tokens', str(shutil.copytree(folder, tmp_path / 'mpnet'))
    config['model']['text'] = {'name': 'text.BERTEncoder', 'path': folder}  # which only --text_encoder reads here
    photos = write_config(tmp_path / 'photos.py', config)
    arguments = ['encode', '--config', str(photos), '--text_encoder', folder, '--out', str(tokens)]
    assert cli.main(arguments) == 0
    assert 'drawn/dev: 30 captions encoded' in capsys.readouterr().out
    loop.train_and_evaluate(make_head(tokens), tmp_path / 'head')
    run = jitm.load(tmp_path / 'head')
    data = run.load_data('dev')
    tokens_of_captions = tokenize_split(data.captions, run.run.vocabulary)
    vectors = of_folder(folder, 'float32', 'highest').add_vectors(tokens_of_captions).vectors
    np.testing.assert_array_equal(vectors, data.token_vectors.values)
    encoded = run.encode_text(data.captions[:3])
    assert encoded.shape == (3, 8)
    moved = shutil.move(folder, tmp_path / 'moved')
    with pytest.raises(UserError, match='name its run directory, or its folder, with --encoder'):
        jitm.load(tmp_path / 'head').encode_text(data.captions[:3])
    elsewhere = jitm.load(tmp_path / 'head', encoder=moved)
    elsewhere.restore_networks()  # that of the photos is where it was
    np.testing.assert_array_equal(elsewhere.encode_text(data.captions[:3]), encoded)
    # A wrong one is an error for whichever network it could be.
    shutil.copytree(moved, folder)
    second = write_folder(tmp_path / 'other', ['a', 'red', 'ring'], pooling={'pooling_mode_cls_token': True})
    for wrong, problem in (
        (tmp_path / 'nowhere', 'features of a network that cannot be read'),
        (tmp_path / 'head', 'features of a network that cannot be read'),
        (photos, 'features of a network that cannot be read'),
        (second, 'vectors of a text encoder that differs from the one found'),
        (tmp_path, 'vectors of a text encoder that cannot be read'),
    ):
        capsys.readouterr()
        search = ['search', '--workdir', f'{tmp_path}/head', '--split', 'dev', 'a red ring']
        assert cli.main([*search, '--encoder', str(wrong)]) == 2
        error = capsys.readouterr().err
        assert f'was trained on {problem}' in error
        assert error.count('\n') == 1
        assert 'with --encoder' in error
