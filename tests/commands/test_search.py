"""`jitm search`: what it prints and writes, in the order of the evaluation, and what it refuses."""

import dataclasses
import io
import json
import shlex
import types

import numpy as np
import pytest

import jitm
from jitm.commands import cli
from jitm.data.images.pixels import Photos
from jitm.data.scenes import load
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import protocol
from jitm.runs.run import load_run, read_split
from jitm.serving.images import as_split, check_readable, open_images
from jitm.serving.loaded_run import LoadedRun
from tests.support.html import Page
from tests.support.search import DATA, names_of, search

PHOTOS = Split('photos', pixels=Photos(['folder/a.jpg'], None), image_ids=('a.jpg',))


@pytest.fixture(scope='module')
def split():
    return load('test', **DATA)


@pytest.fixture(scope='module')
def sims(finished):
    run = load_run(finished)
    return protocol.evaluate_runs([run], read_split([run], 'test'))[1]


def test_a_caption_finds_images_in_the_order_of_the_evaluation(finished, split, sims, capsys, tmp_path):
    flags = '--workdir', finished, '--split', 'test'
    ranked = [split.image_ids[image] for image in np.argsort(-sims[:, 7], kind='stable')]
    page = tmp_path / 'pages' / 'found.html'
    assert names_of(search(capsys, *flags, split.captions[7], '--json', '--html', page)) == ranked
    parsed = Page(page.read_text())
    assert '<div class="cards small-pixels">' in page.read_text()  # whole pictures without interpolation
    assert parsed.texts['h1'] == [split.captions[7]]
    *images, command = parsed.texts['code']
    assert images == ranked
    words = f'--workdir={finished}', '--split=test', '--json', f'--html={page}', split.captions[7]
    assert command == shlex.join(['jitm', 'search', *words])
    assert len(parsed.addresses) == 10
    assert all(address.startswith('data:image/png') for address in parsed.addresses)

    lines = search(capsys, *flags, *split.captions[7].split(), '--top_k', 3).out.splitlines()
    assert [line.split()[2] for line in lines] == ranked[:3]
    assert lines[0].split()[1] == f'{sims[:, 7].max():.4f}'


def test_the_first_match_follows_the_results_that_lack_it(finished, split, sims, capsys, tmp_path):
    """On pages, where matches are marked; the results that are printed are no more."""
    flags = '--workdir', finished, '--split', 'test', '--top_k', 2, '--html', tmp_path / 'a.html'
    ranked = np.argsort(-sims, axis=0, kind='stable')
    ranks = 1 + (ranked == split.image_of_text).argmax(axis=0)
    text = next(text for text in np.flatnonzero(ranks > 2) if split.captions.count(split.captions[text]) == 1)
    assert len(search(capsys, *flags, split.captions[text]).out.splitlines()) == 2
    page = (tmp_path / 'a.html').read_text()
    assert len(Page(page).texts['article']) == 3
    right = page[page.index('<article class="right">') :]
    assert f'<span class="rank">{ranks[text]}</span>' in right
    assert f'>{split.image_ids[split.image_of_text[text]]}</code>' in right
    assert f'<p>{split.captions[5 * split.image_of_text[text]]}</p>' in right

    image = int(np.flatnonzero(np.argmax(sims, axis=1) // 5 != np.arange(10))[0])
    search(capsys, *flags[:4], '--top_k', 1, *flags[6:], '--find', 'captions', '--image', split.image_ids[image])
    wrong, right = Page((tmp_path / 'a.html').read_text()).texts['li']
    assert wrong.startswith(split.captions[np.argmax(sims[image])])
    assert '✓' not in wrong
    assert right.startswith(split.captions[5 * image + np.argmax(sims[image, 5 * image :][:5])])
    assert '✓' in right


def test_captions_of_standard_input_are_answered_one_by_one(finished, capsys, monkeypatch):
    flags = '--workdir', finished, '--split', 'test', '--top_k', 2
    answered = [search(capsys, *flags, caption).out for caption in ('a red ring', 'two blue discs')]

    def answers(text, *more):
        monkeypatch.setattr('sys.stdin', io.TextIOWrapper(io.BytesIO(text)))
        return cli.main(['search', *map(str, flags), '-', *more])

    assert answers(b'a red ring\n\n two blue discs ') == 0
    assert capsys.readouterr().out == f'a red ring\n{answered[0]}\ntwo blue discs\n{answered[1]}\n'
    assert answers(b'a red ring\ntwo blue discs\n', '--json') == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line['query'] for line in lines] == ['a red ring', 'two blue discs']
    assert [result['name'] for result in lines[1]['results']] == [line.split()[2] for line in answered[1].splitlines()]
    assert answers(b'') == 0
    assert answers(b'a red ring\n\xff\n') == 2
    printed = capsys.readouterr()
    assert printed.out == f'a red ring\n{answered[0]}\n'
    assert printed.err == 'error: line 2 of standard input is not UTF-8; convert it\n'


def test_unknown_words_are_named_on_stderr(finished, capsys):
    flags = '--workdir', finished, '--split', 'test'
    printed = search(capsys, *flags, '--rerank', finished, 'a zzz ring <b>qqq zzz')
    line = f'words that the vocabulary of {finished} lacks: zzz, <, b, >, qqq\n'
    assert printed.err == 2 * line
    assert len(printed.out.splitlines()) == 10
    assert search(capsys, *flags, 'a red ring').err == ''


def test_an_image_finds_captions_or_images(finished, split, sims, capsys, tmp_path):
    flags = '--workdir', finished, '--split', 'test', '--image', split.image_ids[4], '--json'
    captions = names_of(search(capsys, *flags, '--find', 'captions', '--top_k', 50))
    scores = [sims[4, split.captions.index(caption)] for caption in captions]
    assert len(captions) == 50
    np.testing.assert_allclose(scores, np.sort(sims[4])[::-1], rtol=1e-5)
    images = names_of(search(capsys, *flags, '--top_k', 50))
    assert sorted([*images, split.image_ids[4]]) == sorted(split.image_ids)
    (tmp_path / 'captions.txt').write_text('a red ring\na blue square\n')
    of_file = names_of(search(capsys, *flags, '--find', 'captions', '--captions', tmp_path / 'captions.txt'))
    assert sorted(of_file) == ['a blue square', 'a red ring']


def test_the_page_escapes_captions(finished, capsys, tmp_path):
    evil = '<script>alert("&")</script>'
    page = tmp_path / 'page.html'
    (tmp_path / 'captions.txt').write_text(f'{evil}\na blue square\n')
    flags = '--workdir', finished, '--split', 'test', '--html', page
    search(capsys, *flags, f'a {evil}')
    assert Page(page.read_text()).texts['h1'] == [f'a {evil}']
    search(capsys, *flags, '--image', 'test-000003', '--find', 'captions', '--captions', tmp_path / 'captions.txt')
    parsed = Page(page.read_text())
    assert 'script' not in parsed.texts
    assert any(item.startswith(evil) for item in parsed.texts['li'])


def test_features_of_a_file_have_numbers(finished, split, sims, capsys, tmp_path):
    np.save(tmp_path / 'features.npy', split.regions)
    flags = '--workdir', finished, '--images', tmp_path / 'features.npy', '--index', tmp_path / 'index'
    assert len(names_of(search(capsys, *flags, 'a red ring', '--json', '--html', tmp_path / 'a.html'))) == 10
    assert (tmp_path / 'index' / 'manifest.json').exists()
    assert Page((tmp_path / 'a.html').read_text()).addresses == []


def test_a_second_run_orders_the_best_results(finished, split, sims, capsys, monkeypatch):
    """The second run is the same one with the opposite scores."""
    similarity = LoadedRun.similarity
    monkeypatch.setattr(LoadedRun, 'similarity', lambda *arguments: -similarity(*arguments))
    flags = '--workdir', finished, '--split', 'test', '--rerank', finished, '--top_m', 4, '--json'
    best = np.argsort(-sims[:, 7], kind='stable')[:4]
    images = names_of(search(capsys, *flags, '--top_k', 3, split.captions[7]))
    assert images == [split.image_ids[image] for image in best[::-1][:3]]
    output = search(capsys, *flags, '--top_k', 3, '--add', split.captions[7])
    np.testing.assert_allclose([result['score'] for result in json.loads(output.out)['results']], 0, atol=1e-6)
    texts = np.argsort(-sims[4], kind='stable')[:4]
    captions = names_of(search(capsys, *flags, '--top_k', 3, '--find', 'captions', '--image', split.image_ids[4]))
    assert captions == [split.captions[text] for text in texts[::-1][:3]]


def test_a_second_run_may_read_other_fields_of_the_split(finished, split, sims, capsys):
    """Images that the first run reads as features, the second one as pixels of its own size."""
    run = load_run(finished)
    images = open_images(split, run)
    reads_pixels = dataclasses.replace(run, model=types.SimpleNamespace(reads=('pixels',)), image_size=(64, 64))
    np.testing.assert_array_equal(as_split(images.take(np.array([2, 3])), reads_pixels).pixels, split.pixels[2:4])
    check_readable(images, reads_pixels)
    with pytest.raises(UserError, match='features of an unknown network, which cannot read photos; give a file'):
        check_readable(PHOTOS, run)


def test_vectors_are_exported(finished, split, sims, capsys, tmp_path):
    import faiss

    flags = '--workdir', finished, '--split', 'test', '--export', tmp_path / 'new' / 'vectors.faiss'
    for _ in range(2):  # its own file is replaced
        assert '10 vectors written to' in search(capsys, *flags).err
    graph = faiss.read_index(str(tmp_path / 'new' / 'vectors.faiss'))
    assert graph.hnsw.efSearch == 16
    graph.hnsw.efSearch = 64
    run = jitm.load(finished)
    scores, rows = graph.search(run.vectors(run.encode_text([split.captions[7]])), 10)
    assert rows[0].tolist() == np.argsort(-sims[:, 7]).tolist()
    np.testing.assert_allclose(scores[0], np.sort(sims[:, 7])[::-1], rtol=1e-5)


def test_pictures_of_photos_are_refused(finished, split, capsys, monkeypatch, tmp_path):
    """A split of photos has pictures of its own."""
    monkeypatch.setattr('jitm.commands.search.open_images', lambda *arguments: PHOTOS)
    flags = f'--workdir {finished} --split test --html {tmp_path}/a.html --photos {tmp_path} a'
    assert cli.main(['search', *flags.split()]) == 2
    assert '--photos is for images of features, but these are photos; leave it out' in capsys.readouterr().err


def test_runs_without_vectors_are_refused(finished, capsys, monkeypatch):
    monkeypatch.setattr('jitm.evaluation.protocol.DualEncoder', ())
    assert cli.main(['search', '--workdir', str(finished), '--split', 'test', 'a']) == 2
    assert 'are not inner products of vectors' in capsys.readouterr().err
