"""Choices: what is right by hand, images that are found and missing, and the command."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import scenes
from jitm.data.images import photos
from jitm.data.images.transforms import Transform
from jitm.data.pairs.compositionality import Choice, as_line, of_scenes
from jitm.data.text.word_level import join
from jitm.errors import UserError
from jitm.evaluation.compositional import compare, decide, evaluate, find_images, score, table
from jitm.evaluation.published import Row
from jitm.inference.pairs import PairScorer
from jitm.runs.run import load_run, read_split
from tests.support.choices import choice

PAIRS = [(0, 0), (1, 1)]
TRANSFORM = Transform(64, 64, 'bilinear', 'centre', 1.0, False)


@pytest.mark.parametrize(
    ('scores', 'matches', 'want'),
    [
        # Winoground: rows are images.
        ([[2, 1], [1, 2]], PAIRS, {'text': True, 'image': True, 'group': True, 'ties': False}),
        ([[2, 1], [3, 4]], PAIRS, {'text': True, 'image': False, 'group': False, 'ties': False}),
        ([[2, 3], [1, 4]], PAIRS, {'text': False, 'image': True, 'group': False, 'ties': False}),
        ([[2, 2], [1, 3]], PAIRS, {'text': False, 'image': True, 'group': False, 'ties': True}),
        ([[2, 1], [2, 3]], PAIRS, {'text': True, 'image': False, 'group': False, 'ties': True}),
        ([[0, 0], [0, 0]], PAIRS, {'text': False, 'image': False, 'group': False, 'ties': True}),
        # SugarCrepe, ARO: one image.
        ([[2, 1]], [(0, 0)], {'text': True, 'ties': False}),
        ([[1, 1]], [(0, 0)], {'text': False, 'ties': True}),
        ([[1, 3, 2]], [(0, 1)], {'text': True, 'ties': False}),
        # SugarCrepe++: both captions beat the last one; they may tie with each other.
        ([[3, 3, 2]], [(0, 0), (0, 1)], {'text': True, 'ties': False}),
        ([[3, 1, 2]], [(0, 0), (0, 1)], {'text': False, 'ties': False}),
        # Two images, one caption.
        ([[3], [2]], [(0, 0)], {'image': True, 'ties': False}),
    ],
)
def test_decisions_by_hand(scores, matches, want):
    assert decide(np.array(scores, np.float32), matches) == want


@pytest.mark.slow
def test_evaluation_by_hand():
    two = Choice('0', 'Winoground', 'Object', ('a', 'b'), ('x', 'y'), tuple(PAIRS))
    choices = [choice('swap_obj')] * 3 + [choice('swap_att'), two, two._replace(category='Both')]
    right = np.array([[1, 0]])
    wrong = np.array([[0, 1]])
    tie = np.array([[1, 1]])
    pair = np.array([[2, 1], [3, 4]])
    report = evaluate(choices, [right, right, tie, wrong, pair, pair])
    # Wilson intervals: (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n) with z = 1.96.
    assert table(report).splitlines()[2:-1] == [
        '| SugarCrepe swap | swap_att | 1 | 0.0 (0.0 to 79.3) | - | - | 0.0 |',
        '| SugarCrepe swap | swap_obj | 3 | 66.7 (20.8 to 93.9) | - | - | 33.3 |',
        '| SugarCrepe swap | all | 4 | 50.0 (15.0 to 85.0) | - | - | 25.0 |',
        '| SugarCrepe swap | mean of categories |  | 33.3 | - | - | - |',
        '| Winoground | Both | 1 | 100.0 (20.7 to 100.0) | 0.0 (0.0 to 79.3) | 0.0 (0.0 to 79.3) | 0.0 |',
        '| Winoground | Object | 1 | 100.0 (20.7 to 100.0) | 0.0 (0.0 to 79.3) | 0.0 (0.0 to 79.3) | 0.0 |',
        '| Winoground | all | 2 | 100.0 (34.2 to 100.0) | 0.0 (0.0 to 65.8) | 0.0 (0.0 to 65.8) | 0.0 |',
    ]
    fewer = evaluate(choices[:4], [right, right, tie, wrong], min_count=2)
    assert [(row['category'], row.get('choices'), row['text']) for row in fewer] == [
        ('swap_obj', 3, pytest.approx(200 / 3)),
        ('all', 4, 50),
        ('mean of categories', None, pytest.approx(200 / 3)),
    ]
    assert [row['category'] for row in evaluate([two], [pair], min_count=2)] == ['all']
    row = {'protocol': 'choices', 'ensemble': False, 'sources': ['x']}
    rows = [
        Row(system='CLIP', dataset='sugarcrepe', metrics={'swap_obj/text': 61.2, 'add_obj/text': 1.0}, **row),
        Row(system='NegCLIP', dataset='sugarcrepe', metrics={'swap/text': 75.3}, note='another', **row),
        Row(system='CLIP', dataset='winoground', metrics={'text': 31.2, 'group': 8.8}, backbone='B', **row),
        Row(system='VSE', dataset='coco', metrics={'text': 0.0}, **row),
    ]
    assert compare(report, rows).splitlines() == [
        '| sugarcrepe | swap_obj/text | swap/text | source |',
        '| --- | --- | --- | --- |',
        '| ours | 66.7 | 33.3 |  |',
        '| CLIP | 61.2 | - | x |',
        '| NegCLIP | - | 75.3 | x (another) |',
        '',
        '| winoground | text | group | source |',
        '| --- | --- | --- | --- |',
        '| ours | 100.0 | 0.0 |  |',
        '| CLIP B | 31.2 | 8.8 | x |',
    ]
    # A mean without one of its published categories is another number.
    rows.append(Row(system='X', dataset='sugarcrepe', metrics={'swap_att/text': 1.0, 'swap_rel/text': 2.0}, **row))
    assert compare(report[:4], rows, part=True).splitlines() == [
        '| sugarcrepe | swap_att/text | swap_obj/text | source |',
        '| --- | --- | --- | --- |',
        '| ours (part) | 0.0 | 66.7 |  |',
        '| CLIP | - | 61.2 | x |',
        '| X | 1.0 | - | x |',
    ]
    assert compare(evaluate([choice('x', 'scenes')], [right]), rows) == ''


@pytest.mark.slow
def test_scores_are_those_of_the_pairs(finished):
    run = load_run(finished)
    split = read_split([run], 'dev')
    choices = of_scenes(split)[::7]
    ids = split.image_ids
    choices.append(Choice('2', 'x', 'y', (ids[3], ids[1]), ('a red ring', 'a xyzzy', 'a plugh'), ((0, 0),)))
    used, chosen, absent = find_images(choices, split, {}, None, 'mine')
    assert ([pair for pair, _ in chosen], absent) == (choices, [])
    scores = score(PairScorer(run, used), used, chosen)
    for (pair, rows), got in zip(chosen, scores, strict=True):
        assert [used.image_ids[row] for row in rows] == [*pair.images]
        assert got.shape == (len(pair.images), len(pair.captions))
        images = run_scores(run, split, [ids.index(name) for name in pair.images], pair.captions)
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
    used, chosen, absent = find_images(choices, folder, pictures, TRANSFORM, 'file')
    assert chosen == [*zip(choices[1:], [[0], [1], [0, 2], [3]], strict=True)]
    assert absent == ['COCO_val2014_000000000001.jpg']
    np.testing.assert_array_equal(used.pixels[:3], split.pixels[[1, 2, 0]])
    np.testing.assert_array_equal(used.pixels[3][0, 0], split.pixels[0, 0, 0])
    assert (used.pixels[3] != split.pixels[0]).any()
    embedded_only = find_images(choices[4:], None, pictures, TRANSFORM, 'file')
    assert embedded_only[1:] == ([(choices[4], [0])], [])
    # Features are of whole images.
    for wrong, embedded in (([choices[1], choices[1]._replace(box=(0, 0, 8, 8))], {}), (choices[:4], pictures)):
        with pytest.raises(
            UserError,
            match='file has boxes or photos, but the images of scenes/dev are not files: give the folder of the photos',
        ):
            find_images(wrong, split, embedded, None, 'file')
    with pytest.raises(UserError, match='file has no choice whose images are given: give the folder of its photos'):
        find_images(choices[:1], split, {}, None, 'file')


COCO = 'COCO_val2014_000000000139.jpg'
SCENES = scenes.load('dev', dev_images=3)


@pytest.mark.parametrize(
    ('name', 'ids', 'dataset', 'row'),
    [
        # Numbers of rows, of images or captions, are no names.
        ('000000000002.jpg', ('0', '1', '2'), '', None),
        ('2', ('0', '1', '2'), 'coco', None),
        ('000000000010.jpg', ('0', '5', '10'), 'coco', None),
        # Other numbers are those of COCO where it is stated, and stems elsewhere.
        (COCO, ('39', '139', '1'), 'coco', 1),
        (COCO, ('39', '139', '1'), 'f30k', None),
        ('139.jpg', ('39', '139', '1'), 'f30k', 1),
        ('000000000139.jpg', ('39', '000000000139', '1'), '', 1),
        (COCO, ('a/39.jpg', 'b/139.png', 'a/1.jpg'), '', 1),
        # Names of Visual Genome are none of COCO.
        ('2345.jpg', ('COCO_val2014_000000002345.jpg', '1.jpg', '2.jpg'), '', None),
        ('2345.jpg', ('COCO_val2014_000000002345.jpg', '1.jpg', '2.jpg'), 'coco', 0),
        ('000000002345', ('1.jpg', 'COCO_val2014_000000002345.jpg', '2.jpg'), '', 1),
        ('12.jpg', ('a/0012.jpg', 'b/12.png', '1.jpg'), '', 1),
        # The whole name, or else the name of the file, decides between several.
        ('12.jpg', ('a/12.png', 'b/12.jpg', '1.jpg'), '', 1),
        ('x/a/12.jpg', ('a/12.jpg', 'b/12.jpg', '1.jpg'), '', 0),
        ('12.jpg', ('12.jpg', 'small/12.jpg', '1.jpg'), '', 0),
        ('12.jpg', ('a/0012.jpg', 'b/12.png', '1.jpg'), 'coco', 'a/0012.jpg or b/12.png'),
        ('12.jpg', ('train/12.jpg', 'val/12.jpg', '1.jpg'), '', 'train/12.jpg or val/12.jpg'),
        ('a/12.jpg', ('a/12.png', 'b/12.jpg', '1.jpg'), '', 'a/12.png or b/12.jpg'),
        ('12.jpg', ('12.jpg', '12.jpg', '1.jpg'), '', '12.jpg or 12.jpg'),
    ],
)
def test_images_are_named_by_their_files(name, ids, dataset, row):
    split = dataclasses.replace(SCENES, image_ids=ids, dataset=dataset)
    if isinstance(row, int):
        used, _, _ = find_images([choice('x', images=(name,))], split, {}, None, 'file')
        assert used.image_ids == (ids[row],)
        return
    message = f"'{name}' may be {row} of scenes/dev: give images where only one"
    if row is None:
        message = 'or a split with the file names of its images as ids'
    with pytest.raises(UserError, match=message):
        find_images([choice('x', images=(name,))], split, {}, None, 'file')


def test_the_command_on_scenes(finished, tmp_path, capsys):
    argv = ['choices', '--workdir', str(finished), '--count', '12', '--output', str(tmp_path / 'out')]
    assert cli.main(argv) == 0
    printed = capsys.readouterr().out
    total = len(of_scenes(scenes.load('dev', dev_images=10)))
    assert f'scenes/dev: 12 of {total} choices; ties count against the match' in printed
    report = json.loads((tmp_path / 'out' / 'choices.json').read_text())
    assert sum(row['choices'] for row in report['results'][:-2]) == report['protocol']['choices'] == 12
    lines = tmp_path / 'out' / 'choices.jsonl'
    right = [
        scores[0][0] > scores[0][1]
        for scores in (json.loads(line)['scores'] for line in lines.read_text().splitlines())
    ]
    assert 100 * np.mean(right) == pytest.approx(report['results'][-2]['text'])
    # What it wrote is a file of choices; one of them has no image here.
    copy = tmp_path / 'copy.jsonl'
    copy.write_text(lines.read_text() + as_line(choice('swap_obj', images=('nowhere.jpg',))))
    assert cli.main([*argv[:3], '--min_count=12', str(copy)]) == 0
    printed = capsys.readouterr().out
    assert 'copy.jsonl: 12 of 13 choices' in printed
    assert 'categories below --min_count without a row: ' in printed
    assert 'left out: 1 choices without all images; missing images: 1 (nowhere.jpg)' in printed
    (folder,) = (finished / 'eval').glob('dev_copy.jsonl-??????')  # files do not replace each other's results
    again = json.loads((folder / 'choices.json').read_text())
    assert (again['results'], again['protocol']['missing_images']) == (report['results'][-2:-1], ['nowhere.jpg'])
    shutil.rmtree(folder)


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
