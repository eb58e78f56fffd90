"""Files of choices: published formats, written by hand as they were published, and what is wrong with others."""

import io
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from jitm.data import scenes
from jitm.data.pairs import compositionality
from jitm.data.pairs.compositionality import Choice, Cut
from jitm.data.scenes import holds, parser
from jitm.errors import UserError

SUGARCREPE = """{
    "0": {
        "filename": "000000085329.jpg",
        "caption": "A car on the street.",
        "negative_caption": "A street on the car."
    },
    "2": {
        "filename": "000000297022.jpg",
        "caption": "Two cats.",
        "negative_caption": "Two dogs."
    }
}"""
SUGARCREPE_2 = (
    '[{"id": 7, "filename": "000000085329.jpg", "caption": "A car.", "caption2": "An automobile.", '
    '"negative_caption": "A cart."}]'
)
RELATION = (
    '[{"image_id": "2339718", "source_name": "dog", "image_path": "2339718.jpg", "bbox_x": 45, "bbox_y": 3, '
    '"bbox_w": 96, "bbox_h": 225, "relation_name": "on", "true_caption": "the dog is on the bed", '
    '"false_caption": "the bed is on the dog"}]'
)
ATTRIBUTE = (
    '[{"image_path": "1.jpg", "bbox_x": 0, "bbox_y": 0, "bbox_w": 9, "bbox_h": 8, "attributes": ["red", "wooden"], '
    '"true_caption": "the red car and the wooden bed", "false_caption": "the wooden car and the red bed"}]'
)
WINOGROUND = """
{"caption_0": "old kisses young", "caption_1": "young kisses old", "tag": "Adjective-Age", "secondary_tag": "",\
 "num_main_preds": 1, "collapsed_tag": "Object", "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "id": 0}
""".lstrip()
OWN = Choice('3', 'mine', 'colours', ('a.jpg',), ('red', 'blue', 'green'), ((0, 1),), (1.0, 2.0, 3.0, 4.0))
ONE = ((0, 0),)
CAR = 'A car on the street.', 'A street on the car.'
ON = 'the dog is on the bed', 'the bed is on the dog'
RED = 'the red car and the wooden bed', 'the wooden car and the red bed'
KISSES = 'old kisses young', 'young kisses old'
READ = {  # id, group, category, images, captions, matches, box
    ('swap_obj.json', SUGARCREPE): [
        Choice('0', 'SugarCrepe swap', 'swap_obj', ('000000085329.jpg',), CAR, ONE),
        Choice('2', 'SugarCrepe swap', 'swap_obj', ('000000297022.jpg',), ('Two cats.', 'Two dogs.'), ONE),
    ],
    ('replace_obj.json', SUGARCREPE_2): [
        Choice(
            *('7', 'SugarCrepe++ replace', 'replace_obj', ('000000085329.jpg',)),
            *(('A car.', 'An automobile.', 'A cart.'), ((0, 0), (0, 1))),
        )
    ],
    ('visual_genome_relation.json', RELATION): [
        Choice('0', 'ARO relation', 'on', ('2339718.jpg',), ON, ONE, (45, 3, 96, 225))
    ],
    ('visual_genome_attribution.json', ATTRIBUTE): [
        Choice('0', 'ARO attribute', 'red_wooden', ('1.jpg',), RED, ONE, (0, 0, 9, 8))
    ],
    ('examples.jsonl', WINOGROUND): [
        Choice('0', 'Winoground', 'Object', ('ex_0_img_0', 'ex_0_img_1'), KISSES, ((0, 0), (1, 1)))
    ],
    ('own.jsonl', compositionality.as_line(OWN, scores=[[1, 2, 3]]) * 2): [OWN, OWN],
    ('one.jsonl', compositionality.as_line(OWN)): [OWN],
}


def write(folder, name, content):
    (folder / name).write_text(content)
    return folder / name


@pytest.mark.parametrize('file', READ, ids=lambda file: file[0])
def test_formats(file, tmp_path):
    assert compositionality.read(write(tmp_path, *file)) == (READ[file], {})


def test_parquet_with_images(tmp_path):
    """BiVLC has its images in the file, without names."""
    row = {'caption': 'a cat', 'negative_caption': 'a dog', 'type': 'Replace', 'subtype': 'Object'}
    row |= {key: {'bytes': key.encode(), 'path': None} for key in ('image', 'negative_image')}
    path = tmp_path / 'test.parquet'
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), path)
    read, pictures = compositionality.read(path)
    images = tuple(f"{path}, entry '1', {key}" for key in ('image', 'negative_image'))
    assert read[1] == Choice('1', 'BiVLC', 'replace_object', images, ('a cat', 'a dog'), ((0, 0), (1, 1)))
    assert pictures[f"{path}, entry '0', negative_image"] == b'negative_image'
    assert len(pictures) == 4


def changed(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (changed(SUGARCREPE, '"Two cats."', '3'), r"entry '2' has a blank caption or name of an image"),
        (changed(SUGARCREPE, '"caption": "Two cats.",', ''), r"x.json, entry '2' has no 'caption': give the file"),
        (changed(SUGARCREPE, '"Two cats."', '" "'), r"entry '2' has a blank caption or name of an image: write it"),
        (changed(RELATION, '"bbox_w": 96', '"bbox_w": null'), r"entry '0' has no 'bbox_w': give the file"),
        (SUGARCREPE[:-1], r'x.json is damaged \(line 1 is not JSON\): restore the file'),
        (changed(WINOGROUND * 2, '"id": 0}', '"id": 0'), r'x.json is damaged \(line 1 is not JSON\)'),
        ('', r'x.json has no choices of a known format: give a file whose rows have one of matches, negative_image, '),
        ('{"a": {"b": 1}}', r'x.json has no choices of a known format'),
        ('{"a": 1}', 'x.json has no choices of a known format'),
        ('[1]', r"x.json, entry 'line 1' is not an object with fields: give a file"),
        ('3', r"x.json, entry 'line 1' is not an object with fields"),
        (
            compositionality.as_line(OWN._replace(matches=((0, 3),))),
            r"'line 1' has wrong 'matches': some pairs must match",
        ),
        (
            compositionality.as_line(OWN._replace(matches=((0, 0), (0, 1), (0, 2)))),
            r"'line 1' has wrong 'matches': some pairs",
        ),
        (
            compositionality.as_line(OWN._replace(matches=(0, 1))),
            r"'line 1': matches.0 is 0; it must be a tuple",
        ),
        (compositionality.as_line(OWN._replace(matches=((0.9, True),))), r'matches.0.0 is 0.9; it must be an integer'),
        *(
            (
                compositionality.as_line(OWN._replace(box=box)),
                r"'line 1' has the box \(.*\): give x, y, and a width and height",
            )
            for box in [(1, 2), (0, 0, 0, 5), (9, 9, -5, -5), (0, 0, True, 5), (0, '0', 5, 5), (), (0, 0, 1e999, 1)]
        ),
        (changed(RELATION, '"bbox_w": 96', '"bbox_w": 0'), r"x.json, entry '0' has the box \(45, 3, 0, 225\)"),
        (compositionality.as_line(OWN._replace(captions=(1, 2))), r"'line 1': captions.0 is 1; it must be a string"),
        (
            compositionality.as_line(OWN._replace(box=(0, 0, 10**400, 1))),
            r"'line 1' has the box \(0, 0, 1000.*: give x, y",
        ),
        (
            compositionality.as_line(OWN._replace(captions=('red', 'blue', 'red'))),
            r"'line 1' has a caption or an image twice",
        ),
        (
            compositionality.as_line(OWN._replace(images=('a.jpg', 'a.jpg'))),
            r"'line 1' has a caption or an image twice",
        ),
    ],
)
def test_errors_name_file_and_entry(content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        compositionality.read(write(tmp_path, 'x.json', content))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r'none.json cannot be read \(No such file'):
        compositionality.read(tmp_path / 'none.json')
    (tmp_path / 'x.json').write_bytes(b'\xff\xff')
    with pytest.raises(UserError, match=r'x.json is damaged \(.*: restore the file'):
        compositionality.read(tmp_path / 'x.json')
    (tmp_path / 'x.parquet').write_bytes(b'PAR1')
    with pytest.raises(UserError, match=r'x.parquet is damaged \(.*: restore the file'):
        compositionality.read(tmp_path / 'x.parquet')


def test_choices_of_scenes_have_one_true_caption():
    split = scenes.load('dev', dev_images=20)
    made = compositionality.of_scenes(split)
    assert made == compositionality.of_scenes(split)
    assert {choice.category for choice in made} == {*parser.KINDS}
    assert len({choice.id for choice in made}) == len(made)
    for choice in made:
        graph = split.graphs[split.image_ids.index(choice.images[0])]
        assert [holds(parser.parse(caption), graph) for caption in choice.captions] == [True, False]


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, 'PNG')
    return content.getvalue()


def test_photos_are_cut_to_boxes():
    """What lies outside of a photo is black, as ARO's own code cuts; a box of no part of it is an error."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    boxes = [(2, 1, 4, 3), (-2.0, 5, 6, 6), None]
    files = Cut([*((png(pixels), box, 'entry 7') for box in boxes), ('a.jpg', None, '')])
    np.testing.assert_array_equal(files[0], pixels[1:4, 2:6])
    np.testing.assert_array_equal(files[1], np.pad(pixels[5:, :4], ((0, 3), (2, 0), (0, 0))))
    np.testing.assert_array_equal(files[2], pixels)
    assert (files[3], len(files)) == ('a.jpg', 4)


@pytest.mark.parametrize('box', [(20, 2, 3, 3), (2, -3, 3, 3), (0, 0, 1e9, 1e9), (1, 1, 0.1, 0.1), (1e308, 0, 1, 1)])
def test_boxes_of_no_part_of_a_photo_are_refused(box):
    with pytest.raises(UserError, match=r'^entry 7 has the box \(.*\), but its photo has 9 x 8 pixels: give'):
        Cut([(png(np.zeros((8, 9, 3), np.uint8)), box, 'entry 7')])[0]


def test_narrow_and_damaged_photos_are_named():
    narrow = png(np.zeros((90, 90, 3), np.uint8)), (0, 0, 1, 80), 'entry 7'
    damaged = b'PNG', None, 'entry 8'
    for file, message in ((narrow, 'entry 7 has 1 x 80 pixels'), (damaged, 'entry 8 is not an image')):
        with pytest.raises(UserError, match=message):
            Cut([file])[0]


def test_lines_are_read_back(tmp_path):
    own = OWN._replace(captions=('red\u2028ring', 'blue\x85ring', 'green\x0cring'))
    line = compositionality.as_line(own, text=True)
    assert json.loads(line)['text'] is True
    assert compositionality.read(write(tmp_path, 'x.jsonl', line + line.replace('3', '4', 1)))[0] == [
        own,
        own._replace(id='4'),
    ]
