"""Heads on the states of a frozen CLIP and SigLIP: from the photos to the trained run, as a user starts them."""

import json
import shutil

import numpy as np
import pytest

import jitm
from jitm.commands import cli
from jitm.configs import siglip
from jitm.data import precomp
from jitm.data.pairs.compositionality import as_line
from jitm.data.splits import pad_texts
from jitm.data.text.vocabularies import tokenize_split
from jitm.encoders import features
from jitm.encoders.text_network import TextNetwork, of_trained
from jitm.errors import UserError
from jitm.files.outputs import UNFINISHED
from jitm.runs.run import load_run, read_split
from jitm.training import loop
from tests.support.choices import choice
from tests.support.runs import draw, make_head, write_initial
from tests.support.steps import make_clip

SIZES = {'train': 12, 'dev': 6}
ENCODE = ['encode', '--texts', '--split', 'train', '--split', 'dev']


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return draw(tmp_path_factory.mktemp('photos') / 'drawn', SIZES)


def make_siglip(root):
    config = siglip.get_config('f8k').to_dict()
    clip = make_clip(root)
    sizes = {key: clip['model']['text'][key] for key in ('hidden_dim', 'num_layers', 'num_heads', 'mlp_dim')}
    config['model'] |= {'embed_dim': 8}
    config['model']['image'] |= sizes | {'image_size': 32}
    config['model']['text'] |= sizes
    config['data'] |= {'root': str(root), 'image_size': 32, 'short_side': 32}
    return config | {key: clip[key] for key in ('epochs', 'batch_size', 'length_multiple', 'evaluation', 'run')}


@pytest.fixture(
    scope='module', params=[make_clip, pytest.param(make_siglip, marks=pytest.mark.slow)], ids=['clip', 'siglip']
)
def tower(request, root, tmp_path_factory):
    """The run of a tiny tower, and the folder of its states."""
    folder = tmp_path_factory.mktemp('tower')
    write_initial(request.param(root), folder / 'run')
    assert cli.main([*ENCODE, '--workdir', str(folder / 'run'), '--out', str(folder / 'tokens')]) == 0
    return folder


@pytest.fixture
def clip_tower(root, tmp_path_factory):
    """The first of them alone, for what does not depend on the tower."""
    base = tmp_path_factory.getbasetemp() / 'clip_tower'
    if not base.exists():
        write_initial(make_clip(root), base / 'run')
        assert cli.main([*ENCODE, '--workdir', str(base / 'run'), '--out', str(base / 'tokens')]) == 0
    return base


def losses(workdir):
    rows = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
    return [row['target/loss'] for row in rows if 'target/loss' in row]


@pytest.mark.slow
def test_the_files_have_the_states_of_the_tower(tower, root):
    run = load_run(tower / 'run')
    split = precomp.load('dev', root=str(tower / 'tokens'), token_vectors=True)
    photos_split = read_split([run], 'dev')
    assert split.captions_hash == photos_split.captions_hash
    tokens = tokenize_split(split.captions, run.vocabulary)
    texts = pad_texts(tokens, np.arange(30), 32)
    want = run.model.apply(run.variables, texts, method=lambda model, texts: model.text.features(texts))
    vectors = split.token_vectors
    assert vectors.vocabulary.hash == run.vocabulary.hash
    np.testing.assert_array_equal(vectors.lengths, tokens.lengths)
    assert vectors.values.shape == (tokens.lengths.sum(), 8)
    start = 0
    for row, length in enumerate(tokens.lengths):
        np.testing.assert_allclose(vectors.values[np.arange(start, start + length)], want[row, :length], atol=1e-5)
        start += length


def test_a_part_of_the_images_has_its_own_vectors(tower):
    split = precomp.load('train', root=str(tower / 'tokens'), token_vectors=True)
    part = split.take(np.array([7, 2]))
    starts = np.cumsum(split.token_vectors.lengths)
    texts = np.flatnonzero(np.isin(split.image_of_text, [7, 2]))
    want = np.concatenate([split.token_vectors.values[np.arange(*starts[[t - 1, t]])] for t in texts])
    np.testing.assert_array_equal(part.token_vectors.values[np.arange(len(want))], want)
    assert part.captions == tuple(split.captions[t] for t in texts)
    dev = precomp.load('dev', root=str(tower / 'tokens'), token_vectors=True, dev_images=2)
    assert len(dev.token_vectors.lengths) == len(dev.captions) == 10


@pytest.mark.slow
def test_a_head_learns(tower, tmp_path):
    config = make_head(tower / 'tokens', 'maxsim', epochs=40)
    config['optimizer'] |= {'learning_rate': 5e-2, 'decay_epochs': 40}
    loop.train_and_evaluate(config, tmp_path / 'run')
    chance = np.log(config['batch_size'])
    assert np.mean(losses(tmp_path / 'run')[-3:]) < chance - 0.2


@pytest.mark.slow
def test_commands_read_a_head(clip_tower, root, tmp_path, monkeypatch, capsys):
    loop.train_and_evaluate(make_head(clip_tower / 'tokens', 'scan'), tmp_path / 'scan')
    loop.train_and_evaluate(make_head(clip_tower / 'tokens'), tmp_path / 'gpo')
    arguments = ['eval', '--split', 'dev', '--save_sims', '--workdir']
    assert cli.main([*arguments, str(tmp_path / 'scan'), '--explain', '2']) == 0, capsys.readouterr().err
    assert cli.main([*arguments, str(tmp_path / 'gpo')]) == 0
    mined = ['--top_h_texts', '3', '--top_h_images', '2', '--out', str(tmp_path / 'mined')]
    assert cli.main(['mine', '--workdir', str(tmp_path / 'gpo'), *mined]) == 0
    caption = precomp.load('dev', root=str(clip_tower / 'tokens')).captions[3]
    assert cli.main(['search', '--workdir', str(tmp_path / 'gpo'), '--split', 'dev', caption]) == 0
    # Choices between captions of the split have the scores of the evaluation.
    split = precomp.load('dev', root=str(clip_tower / 'tokens'))
    pairs = [choice('swap', images=(split.image_ids[0],))._replace(captions=split.captions[t : t + 2]) for t in (4, 9)]
    (tmp_path / 'choices.jsonl').write_text(''.join(map(as_line, pairs)))
    for name in ('gpo', 'scan'):
        arguments = ['choices', '--workdir', str(tmp_path / name), '--split', 'dev', str(tmp_path / 'choices.jsonl')]
        assert cli.main(arguments) == 0
        (scored,) = (tmp_path / name / 'eval').glob('dev_choices.jsonl-*/choices.jsonl')
        sims = np.load(tmp_path / name / 'eval' / 'dev' / 'sims.npy')
        got = [json.loads(line)['scores'][0] for line in scored.read_text().splitlines()]
        np.testing.assert_allclose(got, [sims[0, 4:6], sims[0, 9:11]], atol=1e-6)
    run = jitm.load(tmp_path / 'gpo')  # the text tower reads free captions
    data = run.load_data('dev')
    sims = np.load(tmp_path / 'gpo' / 'eval' / 'dev' / 'sims.npy')
    got = run.similarity(run.encode_image(data.images), run.encode_text(data.captions))
    np.testing.assert_allclose(got, sims, atol=1e-6)
    # Pages show the photos that were encoded.
    flags = ['--workdir', str(tmp_path / 'gpo'), '--split', 'dev']
    for command, page in (
        (['report', str(tmp_path / 'gpo'), str(tmp_path / 'scan'), '--output', f'{tmp_path}/a.html'], 'a.html'),
        (['search', *flags, caption, '--html', f'{tmp_path}/b.html'], 'b.html'),
        (['audit', *flags, '--output', f'{tmp_path}/audit'], 'audit/audit.html'),
    ):
        assert cli.main(command) == 0, capsys.readouterr().err
        assert 'data:image/jpeg' in (tmp_path / page).read_text()
    # Without the tower the run is evaluated, and what reads captions is one sentence.
    moved = clip_tower / 'moved'
    monkeypatch.setattr('jitm.commands.explorer.serve', lambda site, host, bound: None)
    (clip_tower / 'run').rename(moved)
    try:
        for command in (
            ['search', '--workdir', str(tmp_path / 'gpo'), '--split', 'dev', 'a red ring'],
            ['choices', '--workdir', str(tmp_path / 'scan'), '--split', 'dev', str(tmp_path / 'choices.jsonl')],
            ['eval', '--workdir', str(tmp_path / 'scan'), '--explain', '1'],
            ['explorer', '--workdir', str(tmp_path / 'scan'), '--port', '0'],
        ):
            assert cli.main(command) == 2
            assert 'name its run directory, or its folder, with --encoder' in capsys.readouterr().err
            assert cli.main([*command, '--encoder', str(moved)]) == 0, capsys.readouterr().err
    finally:
        moved.rename(clip_tower / 'run')


def test_what_is_encoded_is_not_encoded_again(clip_tower, tmp_path, monkeypatch, capsys):
    tokens = shutil.copytree(clip_tower / 'tokens', tmp_path / 'tokens')
    arguments = [*ENCODE, '--workdir', str(clip_tower / 'run'), '--out', str(tokens)]
    files = {path.name: path.read_bytes() for path in tokens.iterdir()}
    (tokens / 'dev_txts.npy').unlink()  # that of a killed job is missing
    monkeypatch.setattr(features, 'TEXTS_PER_BLOCK', 7)
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert 'drawn/train: 60 captions had been encoded' in output
    assert 'drawn/dev: 30 captions encoded' in output
    assert {path.name: path.read_bytes() for path in tokens.iterdir()} == files
    run = load_run(clip_tower / 'run')
    half = of_trained(run, 'float16', 'highest')
    with pytest.raises(UserError, match=r'dev_txts.npy has other features than these \(dtype\)'):
        features.write_texts(half, read_split([run], 'dev'), 'dev', tokens)


def test_a_killed_job_leaves_no_vectors(clip_tower, tmp_path, monkeypatch):
    tokens = tmp_path / 'tokens'
    arguments = [*ENCODE, '--workdir', str(clip_tower / 'run'), '--out', str(tokens)]
    monkeypatch.setattr(features, 'TEXTS_PER_BLOCK', 20)
    encode = TextNetwork.encode
    calls = iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(TextNetwork, 'encode', lambda *args: encode(*args) if next(calls) < 4 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(arguments)
    assert (tokens / 'train_txts.npy').exists()
    assert not (tokens / 'dev_txts.npy').exists()
    with pytest.raises(UserError, match="has no vectors of the tokens of 'dev'"):
        precomp.load('dev', root=str(tokens), token_vectors=True)
    rows = []
    monkeypatch.setattr(TextNetwork, 'encode', lambda *args: rows.append(len(args[2])) or encode(*args))
    assert cli.main(arguments) == 0
    assert rows == [10]  # the first 20 captions had been encoded
    assert not (tokens / UNFINISHED).exists()
    same = (clip_tower / 'tokens' / 'dev_txts.npy').read_bytes()
    assert (tokens / 'dev_txts.npy').read_bytes() == same


def damage(path):
    """Changes a file of a folder."""
    if path.suffix == '.npy':
        np.save(path, np.load(path)[1:])
    else:
        path.write_text(path.read_text().replace('a ', 'the ', 1) if path.suffix == '.txt' else '{}')


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('train_txts.npy', 'which is no vector for each of the .* tokens in .*: write the vectors again'),
        ('train_lengths.npy', r'has shape \(59,\): it needs the number of tokens of each caption, shape \(60,\)'),
        ('train_caps.txt', 'train_txts.npy has other captions than train in'),
        ('vocabulary.json', 'vocabulary.json is not the vocabulary of the vectors beside it'),
        ('encoded.json', "has no vectors of the tokens of 'train', but config key 'data.token_vectors' is True"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(clip_tower, tmp_path, name, message):
    tokens = shutil.copytree(clip_tower / 'tokens', tmp_path / 'tokens')
    damage(tokens / name)
    with pytest.raises(UserError, match=message):
        loop.train_and_evaluate(make_head(tokens), tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


PERTURBED = {'source': 'perturbed', 'same_image': 'negative', 'perturbations': ('swap',)}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'data': {'token_vectors': False}}, 'the model reads vectors of tokens, which only captions of a data set'),
        ({'vocabulary': {'path': 'vocab.txt'}}, "'vocabulary.path' is 'vocab.txt', but vectors of tokens come with"),
        ({'augmentation': {'change_words': 0.2}}, "change_words' must be 0.0 where 'data.token_vectors' is True"),
        ({'candidates': PERTURBED}, 'its captions have no vectors of tokens'),
    ],
)
def test_configs_that_do_not_fit_are_one_sentence(clip_tower, tmp_path, changes, message):
    config = make_head(clip_tower / 'tokens')
    for section, values in changes.items():
        config[section] = values if values == PERTURBED else config[section] | values
    with pytest.raises(UserError, match=message):
        loop.train_and_evaluate(config, tmp_path / 'run')


@pytest.mark.slow
def test_vectors_of_another_tower_are_refused(root, clip_tower, tmp_path, capsys):
    second = tmp_path / 'other'
    write_initial(make_clip(root) | {'seed': 5}, second / 'run')
    assert cli.main([*ENCODE, '--workdir', str(second / 'run'), '--out', str(second / 'tokens')]) == 0
    loop.train_and_evaluate(make_head(clip_tower / 'tokens'), tmp_path / 'run')
    capsys.readouterr()
    assert cli.main(['eval', '--workdir', str(tmp_path / 'run'), '--data_root', str(second / 'tokens')]) == 2
    assert 'has vectors of tokens by another text encoder than' in capsys.readouterr().err
    config = make_head(second / 'tokens')
    with pytest.raises(UserError, match='data'):
        loop.train_and_evaluate(config, tmp_path / 'run')  # resumes on other data
