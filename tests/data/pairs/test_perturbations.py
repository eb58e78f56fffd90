"""Perturbations by hand, and of the captions of `scenes`."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.pairs import caption_rules, kinds, perturbations
from jitm.data.pairs.perturbations import perturb, perturber
from jitm.data.scene_graphs import CaptionGraph, parse
from jitm.data.splits import Split
from jitm.errors import UserError


def make_split(*captions, images=1):
    image_of_text = np.arange(len(captions), dtype=np.int32) * images // len(captions)
    features = np.zeros((images, 1, 1), np.float32), np.ones(images, np.int32)
    return Split('made', *features, captions, image_of_text, ('image',) * images)


def test_nouns_by_hand():
    caption = 'Dogs chase a ball near a tree'
    captions = [caption, 'a dog and a toy', 'two puppies in the garden']
    nouns = ['apple', 'apples', 'ball', 'dogs', 'garden', 'toys', 'trees', 'house']
    # The captions contain `trees`, `toys` and `dogs` in the singular or plural; `tree` itself is not in the list.
    assert list(caption_rules.replace_nouns(caption, parse(caption), captions, nouns)) == [
        'Apples chase a ball near a tree',
        'Dogs chase an apple near a tree',
        'Dogs chase a house near a tree',
    ]


def test_numbers_by_hand():
    caption = 'A small , black dog and two cats by an old bus'
    found = list(caption_rules.change_numbers(caption, parse(caption)))
    assert len(found) == len(set(found)) == 3 * 11
    assert 'Two small , black dogs and two cats by an old bus' in found
    assert 'A small , black dog and one cat by an old bus' in found
    assert 'A small , black dog and twelve cats by an old bus' in found
    assert 'A small , black dog and two cats by eight old buses' in found


@pytest.mark.parametrize('caption', ['a group of people', 'it is a .', 'people run', 'one of them sits'])
def test_numbers_without_a_noun_are_kept(caption):
    assert list(caption_rules.change_numbers(caption, parse(caption))) == []


def test_prepositions_by_hand():
    caption = 'a cat sits on top of a box under the table'
    found = list(caption_rules.replace_prepositions(caption, parse(caption)))
    assert 'a cat sits behind a box under the table' in found
    assert 'a cat sits on top of a box above the table' in found
    kept = {'on', 'onto', 'upon', 'atop', 'over'}
    assert not {f'a cat sits {word} a box under the table' for word in kept} & set(found)
    distinct = {*itertools.chain(*caption_rules.PREPOSITIONS)}
    assert len(found) == len(set(found)) == 2 * len(distinct) - 6 - 4


def test_swaps_by_hand():
    caption = 'A man in a red hat holds the small dog and a cat'
    found = set(caption_rules.swap_objects(caption, parse(caption)))
    assert found == {
        'A red hat in a man holds the small dog and a cat',
        'The small dog in a red hat holds a man and a cat',
        'A cat in a red hat holds the small dog and a man',
        'A man in the small dog holds a red hat and a cat',
        'A man in a cat holds the small dog and a red hat',
    }
    assert not list(caption_rules.swap_objects('a dog with a dog', parse('a dog with a dog')))
    assert not list(caption_rules.swap_objects('a dog chases a dog', parse('a dog chases a dog')))


def test_perturb_by_hand():
    captions = ('a dog on a mat', 'a mat on a dog', 'a cat under a mat', 'a cat')
    split = make_split(*captions, images=2)
    graphs = tuple(map(parse, captions))
    nouns = perturb(split, graphs, 'noun', seed=0, min_count=2)
    assert [set(found) for found in nouns] == [
        {'a cat on a mat', 'a dog on a cat'},
        {'a cat on a dog', 'a mat on a cat'},
        {'a dog under a mat', 'a cat under a dog'},
        {'a dog'},
    ]
    relations = perturb(split, graphs, 'relation', seed=0)
    assert 'a mat on a dog' not in relations[0]  # a caption of the same image
    assert 'a mat under a cat' in relations[2]
    assert relations[3] == ()


def test_seed_and_max_per_caption():
    dev = scenes.load('dev', dev_images=8)
    for kind in kinds.BY_RULES:
        complete = perturb(dev, dev.caption_graphs, kind, seed=0, min_count=2)
        assert complete == perturb(dev, dev.caption_graphs, kind, seed=0, min_count=2)
        assert complete != perturb(dev, dev.caption_graphs, kind, seed=1, min_count=2)
        limited = perturb(dev, dev.caption_graphs, kind, seed=0, min_count=2, max_per_caption=3)
        assert limited == tuple(found[:3] for found in complete)
        assert max(map(len, complete)) > 3
        for found, caption in zip(complete, dev.captions, strict=True):
            assert len(set(found)) == len(found)
            assert caption not in found


def test_concreteness(tmp_path):
    path = tmp_path / 'words.txt'
    path.write_text('dog 0.9\ncat\t0.7\n\nhot dog 1\nidea 0.1\n')
    assert perturbations.read_concreteness(str(path)) == {'dog': 0.9, 'cat': 0.7, 'hot dog': 1, 'idea': 0.1}
    captions = ('a dog', 'a cat', 'an idea', 'a mat')
    split = make_split(*captions, images=4)
    graphs = tuple(map(parse, captions))
    found = perturb(split, graphs, 'noun', seed=0, min_count=1, concreteness=str(path))
    assert found == (('a cat',), ('a dog',), (), ())
    path.write_text('dog many\n')
    with pytest.raises(UserError, match=r'words.txt, line 1 is not a word and its score: give another list'):
        perturbations.read_concreteness(str(path))
    with pytest.raises(UserError, match=r'cannot be read \(No such file or directory\): give the path'):
        perturbations.read_concreteness(str(tmp_path / 'none'))


def test_user_errors():
    split = make_split('a dog')
    graphs = (CaptionGraph(((2, 5),)),)
    with pytest.raises(UserError, match="there is no perturbation 'nuon', did you mean 'noun'"):
        perturb(split, graphs, 'nuon', seed=0)
    with pytest.raises(UserError, match='made has 1 nouns that occur 1 times; lower min_count'):
        perturb(split, graphs, 'noun', seed=0, min_count=1)


def test_a_file_of_perturbed_captions(tmp_path):
    split = make_split('a red ring', 'a ring', 'a disc', images=3)
    path = tmp_path / 'perturbed.jsonl'
    lines = {'caption': 'a red ring', 'perturbed': ['a blue ring', 'a ring ']}, {'caption': 'x', 'perturbed': ['y']}
    path.write_text('\n'.join(map(json.dumps, (*lines, {'caption': 'a red ring', 'perturbed': ['a red disc']}))))
    kind = perturber(split, None, str(path))
    assert [kind(text) for text in range(3)] == [['a blue ring', 'a ring', 'a red disc'], [], []]
    # No caption of the image is a perturbed one.
    same_image = dataclasses.replace(split, image_of_text=np.zeros(3, np.int32))
    assert perturber(same_image, None, str(path))(0) == ['a blue ring', 'a red disc']


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'cannot be read (No such file or directory): give the path of perturbed captions'),
        ('{"caption": "a red ring", "perturbed": "a blue ring"}\n{}', 'line 2 is not {"caption": text, "perturbed"'),
        ('{"caption": "a red ring", "perturbed": [1]}', 'line 1 is not'),
        ('[', 'line 1 is not'),
        ('{"caption": "x", "perturbed": ["y"]}', 'has none of the captions of made: give the file of this split'),
    ],
)
def test_wrong_files_of_perturbed_captions(content, message, tmp_path):
    path = tmp_path / 'perturbed.jsonl'
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        perturber(make_split('a red ring'), None, str(path))
