"""Choices: what is right by hand, images that are found and missing, and the command."""

import json

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import photos, scenes
from jitm.data.choices import Choice, as_line, of_scenes
from jitm.data.text import join
from jitm.data.transforms import Transform
from jitm.errors import UserError
from jitm.evaluation.choices import compare, decide, evaluate, find_images, score, table
from jitm.evaluation.published import Row
from jitm.inference.pair_scorer import PairScorer
from jitm.runs.run import load_run, read_split

PAIRS = [(0, 0), (1, 1)]
TRANSFORM = Transform(64, 64, 'bilinear', 'centre', 1.0, False)


@pytest.mark.parametrize(
    ('scores', 'matches', 'want'),
    [
        # Winoground: rows are images.
        ([[2, 1], [1, 2]], PAIRS, {'text': True, 'image': True, 'group': True, 'tie': False}),
        ([[2, 1], [3, 4]], PAIRS, {'text': True, 'image': False, 'group': False, 'tie': False}),
        ([[2, 3], [1, 4]], PAIRS, {'text': False, 'image': True, 'group': False, 'tie': False}),
        ([[2, 2], [1, 3]], PAIRS, {'text': False, 'image': True, 'group': False, 'tie': True}),
        ([[2, 1], [2, 3]], PAIRS, {'text': True, 'image': False, 'group': False, 'tie': True}),
        ([[0, 0], [0, 0]], PAIRS, {'text': False, 'image': False, 'group': False, 'tie': True}),
        # SugarCrepe, ARO: one image.
        ([[2, 1]], [(0, 0)], {'text': True, 'tie': False}),
        ([[1, 1]], [(0, 0)], {'text': False, 'tie': True}),
        ([[1, 3, 2]], [(0, 1)], {'text': True, 'tie': False}),
        # SugarCrepe++: both captions beat the last one; they may tie with each other.
        ([[3, 3, 2]], [(0, 0), (0, 1)], {'text': True, 'tie': False}),
        ([[3, 1, 2]], [(0, 0), (0, 1)], {'text': False, 'tie': False}),
        # Two images, one caption.
        ([[3], [2]], [(0, 0)], {'image': True, 'tie': False}),
    ],
)
def test_decisions_by_hand(scores, matches, want):
    assert decide(np.array(scores, np.float32), matches) == want


def choice(category, group='SugarCrepe swap', images=('a',)):
    return Choice('0', group, category, images, ('x', 'y'), ((0, 0),) if len(images) == 1 else ((0, 0), (1, 1)))


def test_evaluation_by_hand():
    choices = [choice('swap_obj')] * 3 + [choice('swap_att')] + [choice('Object', 'Winoground', ('a', 'b'))]
    right, wrong, tie = np.array([[1, 0]]), np.array([[0, 1]]), np.array([[1, 1]])
    report = evaluate(choices, [right, right, tie, wrong, np.array([[2, 1], [3, 4]])])
    swap, pairs = report['SugarCrepe swap'], report['Winoground']
    assert (swap['choices'], swap['text'], swap['ties']) == (4, 50, 25)
    assert swap['mean'] == {'text': pytest.approx(100 / 3)}
    objects = swap['categories']['swap_obj']
    assert objects['text'] == pytest.approx(200 / 3)
    assert 'image' not in objects
    # Wilson: (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    z, p, n = 1.959964, 2 / 3, 3
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    want = [(p + z**2 / (2 * n) + side * half) / (1 + z**2 / n) * 100 for side in (-1, 1)]
    assert objects['text_interval'] == pytest.approx(want, abs=1e-3)
    assert (pairs['text'], pairs['image'], pairs['group']) == (100, 0, 0)
    assert table(report).splitlines()[2:] == [
        '| SugarCrepe swap | swap_att | 1 | 0.0 (0.0 to 79.3) | - | - | 0.0 |',
        '| SugarCrepe swap | swap_obj | 3 | 66.7 (20.8 to 93.9) | - | - | 33.3 |',
        '| SugarCrepe swap | all | 4 | 50.0 (15.0 to 85.0) | - | - | 25.0 |',
        '| SugarCrepe swap | mean of categories |  | 33.3 | - | - | - |',
        '| Winoground | Object | 1 | 100.0 (20.7 to 100.0) | 0.0 (0.0 to 79.3) | 0.0 (0.0 to 79.3) | 0.0 |',
    ]
    fewer = evaluate(choices[:4], [right, right, tie, wrong], min_count=2)['SugarCrepe swap']
    assert [*fewer['categories']] == ['swap_obj']
    assert (fewer['mean'], fewer['choices']) == ({'text': objects['text']}, 4)
    row = {'protocol': 'choices', 'ensemble': False, 'sources': ['x']}
    rows = [
        Row(system='CLIP', dataset='sugarcrepe', metrics={'swap_obj/text': 61.2, 'add_obj/text': 1.0}, **row),
        Row(system='CLIP', dataset='winoground', metrics={'text': 31.2, 'group': 8.8}, backbone='B', **row),
        Row(system='VSE', dataset='coco', metrics={'text': 0.0}, **row),
    ]
    assert compare(report, rows).splitlines() == [
        '| sugarcrepe | swap_obj/text |',
        '| --- | --- |',
        '| ours | 66.7 |',
        '| CLIP | 61.2 |',
        '',
        '| winoground | text | group |',
        '| --- | --- | --- |',
        '| ours | 100.0 | 0.0 |',
        '| CLIP B | 31.2 | 8.8 |',
    ]
    assert compare({'scenes': swap}, rows) == ''


def test_scores_are_those_of_the_pairs(finished):
    run = load_run(finished)
    split = read_split([run], 'dev')
    choices = of_scenes(split, [0, 7, 12])
    ids = split.image_ids
    choices.append(Choice('2', 'x', 'y', (ids[3], ids[1]), ('a red ring', 'a xyzzy', 'a plugh'), ((0, 0),)))
    found = find_images(choices, split, {}, None, 'mine')
    assert (found.choices, found.missing) == (choices, [])
    scores = score(PairScorer(run, found.split), choices, found.images)
    for one, rows, got in zip(choices, found.images, scores, strict=True):
        assert [found.split.image_ids[row] for row in rows] == [*one.images]
        assert got.shape == (len(one.images), len(one.captions))
        images = run_scores(run, split, [ids.index(name) for name in one.images], one.captions)
        np.testing.assert_allclose(got, images, atol=1e-5)
    # Unknown words are the same to the model: a tie, exactly.
    assert (scores[-1][:, 1] == scores[-1][:, 2]).all()


def run_scores(run, split, images, captions):
    tokens = join([run.vocabulary.encode(caption) for caption in captions])
    scorer = PairScorer(run, split)
    return [scorer.score(np.full(len(captions), image), tokens) for image in images]


def test_images_are_found_by_their_names(tmp_path):
    split = scenes.load('dev', dev_images=3)
    photos.write(split, tmp_path)
    folder = photos.load_folder(tmp_path, TRANSFORM)
    names = ('COCO_val2014_000000000001.jpg', 'dev-000001', 'dev-000002.png')
    choices = [choice('x', images=(name,)) for name in names]
    pictures = {'p': (tmp_path / 'dev' / 'dev-000000.png').read_bytes()}
    choices += [choice('x', images=('dev-000001.jpg', 'p')), choice('x')._replace(images=('p',), box=(0, 0, 8, 8))]
    found = find_images(choices, folder, pictures, TRANSFORM, 'file')
    assert found.choices == choices[1:]
    assert found.missing == ['COCO_val2014_000000000001.jpg']
    assert found.images == [[0], [1], [0, 2], [3]]
    np.testing.assert_array_equal(found.split.pixels[:3], split.pixels[[1, 2, 0]])
    np.testing.assert_array_equal(found.split.pixels[3][0, 0], split.pixels[0, 0, 0])
    assert (found.split.pixels[3] != split.pixels[0]).any()
    # Features are of whole images.
    found = find_images([choices[1], choices[1]._replace(box=(0, 0, 8, 8))], split, {}, None, 'file')
    assert (found.choices, found.missing) == ([choices[1]], ['dev-000001'])
    with pytest.raises(UserError, match='file has no choice whose images are given: give a folder of photos as'):
        find_images(choices[:1], split, {}, None, 'file')


def test_the_command_on_scenes(finished, tmp_path, capsys):
    argv = ['choices', '--workdir', str(finished), '--count', '12', '--output', str(tmp_path / 'out')]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    assert 'scenes/dev: 12 of 12 choices; ties count against the match' in printed
    report = json.loads((tmp_path / 'out' / 'choices.json').read_text())
    assert report['groups']['scenes']['choices'] == report['protocol']['choices'] == 12
    lines = tmp_path / 'out' / 'choices.jsonl'
    assert sum(json.loads(line)['text'] for line in lines.read_text().splitlines()) == pytest.approx(
        0.12 * report['groups']['scenes']['text']
    )
    # What it wrote is a file of choices; one of them has no image here.
    copy = tmp_path / 'copy.jsonl'
    copy.write_text(lines.read_text() + as_line(choice('swap_obj', images=('nowhere.jpg',))))
    assert cli.main([*argv[:3], '--output', str(tmp_path / 'again'), str(copy)]) == 0
    printed = capsys.readouterr().out
    assert 'copy.jsonl: 12 of 13 choices' in printed
    assert '1 choices are left out: 1 images are missing (nowhere.jpg)' in printed
    again = json.loads((tmp_path / 'again' / 'choices.json').read_text())
    assert (again['groups'], again['missing_images']) == (report['groups'], ['nowhere.jpg'])


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['none.json'], 'none.json cannot be read (No such file or directory)'),
        (['--count=0'], 'count'),
        (['--photos', 'nowhere'], 'nowhere is not a folder; give one as --photos'),
        (['--photos', '.'], 'does not read photos: leave --photos out'),
    ],
)
def test_errors_of_the_command(words, message, finished, capsys):
    assert cli.main(['choices', '--workdir', str(finished), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
