"""Published data sets in several files or languages; the tests write tiny ones in their layouts."""

import gzip
import json
import re

import pytest
from PIL import Image

from jitm.data.images import photos
from jitm.errors import UserError

SIZES = {'image_size': 16, 'short_side': 20}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def draw(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new('RGB', (20, 20)).save(folder / name)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == '.gz' else text.encode())


def load(root, split='test', **changes):
    return photos.load(split, root=str(root), **SIZES | changes)


def pairs(split):
    """Image -> its captions."""
    found = {name: [] for name in split.image_ids}
    for image, caption in zip(split.image_of_text, split.captions, strict=True):
        found[split.image_ids[image]].append(caption)
    return found


def urban1k(root):
    draw(root / 'image', '221.jpg', '3.jpg')
    write(root / 'caption' / '3.txt', 'A street, seen from above.\nnot read\n')
    write(root / 'caption' / '221.txt', 'A square.\u2028 A tram.')


def docci(root):
    draw(root / 'images', 'test_00000.jpg', 'train_00000.jpg', 'qual_dev_00000.jpg')
    rows = [
        {'split': split, 'image_file': f'{split}_00000.jpg', 'description': f'A {split} photo.', 'example_id': split}
        for split in ('train', 'test', 'qual_dev')
    ]
    (root / 'docci_descriptions.jsonlines').write_text('\n'.join(map(json.dumps, rows)) + '\n')
    (root / 'docci_metadata.jsonlines').write_text(json.dumps({'example_id': 'test', 'split': 'test'}) + '\n')


def xm3600(root):
    draw(root / 'images', 'a1.jpg', 'b2.jpg')
    texts = {'a1': {'de': ['Ein Hund', 'Zwei'], 'zh': ['\u72d7']}, 'b2': {'de': ['Eine Katze']}}
    rows = [
        {'image/key': key, 'image/locale': 'de'}
        | {code: {'caption': captions, 'caption/tokenized': ['not read']} for code, captions in of.items()}
        for key, of in texts.items()
    ]
    (root / 'captions.jsonl').write_text('\n'.join(map(json.dumps, rows)))


def xtd10(root):
    draw(root / 'val2014', 'COCO_val2014_000000000042.jpg')
    draw(root / 'train2014', 'COCO_train2014_000000000009.jpg')
    names = 'COCO_train2014_000000000009.jpg\nCOCO_val2014_000000000042.jpg\n'
    write(root / 'XTD10' / 'test_image_names.txt', names)
    for folder, language in (('XTD10', 'en'), ('MIC', 'de'), ('STAIR', 'jp')):
        write(
            root / folder / f'test_1kcaptions_{language}.txt', f'{language} one\n{language} two'
        )  # no last end of line


def multi30k(root):
    """Both tasks; the images of task 1 are those of COCO in one of its splits."""
    first, second = root / 'task1', root / 'task2'
    for task in (first, second):
        draw(task / 'images', '1.jpg', '2.jpg', 'COCO_val2014_000000000042.jpg')
    for split, names in (('test_2016_flickr', '1.jpg\n2.jpg\n'), ('val', '2.jpg\n')):
        write(first / 'image_splits' / f'{split}.txt', names)
        for language in ('fr', 'cs'):
            lines = [f'{language} {name}\n' for name in names.split()]
            write(first / 'raw' / f'{split}.{language}.gz', ''.join(lines))
    write(first / 'image_splits' / 'test_2017_mscoco.txt', 'COCO_val2014_000000000042.jpg#7\n' * 2)
    write(first / 'raw' / 'test_2017_mscoco.fr.gz', 'a\nb\n')
    write(second / 'image_splits' / 'test_2016_images.txt', '2.jpg\n1.jpg\n')
    for number in range(1, 6):
        write(second / 'raw' / f'test_2016.{number}.de.gz', f'zwei {number}\neins {number}\n')


def test_the_first_line_of_urban1k_is_its_caption(tmp_path):
    urban1k(tmp_path)
    assert pairs(load(tmp_path)) == {
        'image/221.jpg': ['A square. A tram.'],
        'image/3.jpg': ['A street, seen from above.'],
    }


def test_splits_of_docci_are_its_own(tmp_path):
    docci(tmp_path)
    for split in ('train', 'test', 'qual_dev'):
        assert pairs(load(tmp_path, split)) == {f'{split}_00000.jpg': [f'A {split} photo.']}


def test_xm3600_has_one_caption_or_all(tmp_path, caplog):
    xm3600(tmp_path)
    (tmp_path / 'dataset.txt').write_text('xm3600\n')
    split = load(tmp_path, language='de')
    assert pairs(split) == {'a1.jpg': ['Ein Hund', 'Zwei'], 'b2.jpg': ['Eine Katze']}
    assert (split.name, split.dataset) == (f'{tmp_path.name}-de/test', 'xm3600-de')
    assert pairs(load(tmp_path, language='de', max_captions=1)) == {'a1.jpg': ['Ein Hund'], 'b2.jpg': ['Eine Katze']}
    assert pairs(load(tmp_path, language='zh')) == {'a1.jpg': ['\u72d7']}
    assert '1 of 2 images have no captions' in caplog.text


@pytest.mark.parametrize('language', ['en', 'de', 'jp'])
def test_lines_of_xtd10_are_its_images(tmp_path, language):
    xtd10(tmp_path)
    assert pairs(load(tmp_path, language=language)) == {
        'COCO_train2014_000000000009.jpg': [f'{language} one'],
        'COCO_val2014_000000000042.jpg': [f'{language} two'],
    }


def test_tasks_of_multi30k(tmp_path):
    multi30k(tmp_path)
    assert pairs(load(tmp_path / 'task1', language='cs')) == {'1.jpg': ['cs 1.jpg'], '2.jpg': ['cs 2.jpg']}
    assert pairs(load(tmp_path / 'task1', 'test_2016_flickr', language='fr'))['1.jpg'] == ['fr 1.jpg']
    assert pairs(load(tmp_path / 'task1', 'dev', language='fr')) == {'2.jpg': ['fr 2.jpg']}
    assert pairs(load(tmp_path / 'task1', 'test_2017_mscoco', language='fr')) == {
        'COCO_val2014_000000000042.jpg': ['a', 'b']
    }
    assert pairs(load(tmp_path / 'task2', language='de')) == {
        '2.jpg': [f'zwei {number}' for number in range(1, 6)],
        '1.jpg': [f'eins {number}' for number in range(1, 6)],
    }


LINES = '{root}/MIC/test_1kcaptions_de.txt has 1 captions, but {root}/XTD10/test_image_names.txt has 2 images: download'


@pytest.mark.parametrize(
    ('layout', 'split', 'options', 'damage', 'message'),
    [
        (urban1k, 'test', {}, lambda root: (root / 'image' / '3.jpg').unlink(), "no image with the name '3': add it"),
        (urban1k, 'test', {}, lambda root: (root / 'caption' / '3.txt').unlink(), "no caption with the name '3'"),
        (
            urban1k,
            'test',
            {},
            lambda root: write(root / 'caption' / '3.txt', '\nnot read'),
            '3.txt has a blank caption',
        ),
        (urban1k, 'dev', {}, None, "has no images of the split 'dev'"),
        (urban1k, 'test', {'language': 'de'}, None, "language' is 'de', but {root} has them in one: leave it out"),
        (urban1k, 'train', {'held_out': 0.1}, None, 'has published splits: leave out config key data.held_out'),
        (xm3600, 'test', {}, None, "'data.language' is '', but {root} has captions in de, zh: give one"),
        (xm3600, 'test', {'language': 'ja'}, None, "'data.language' is 'ja', but {root} has captions in de, zh: give"),
        (
            xtd10,
            'test',
            {'language': 'ja'},
            None,
            "'data.language' is 'ja', but {root} has captions in de, en, jp: give",
        ),
        (xtd10, 'train', {'language': 'de'}, None, "has no images of the split 'train'"),
        (xtd10, 'test', {'language': 'de'}, lambda root: write(root / 'MIC' / 'test_1kcaptions_de.txt', 'eins'), LINES),
        (
            xtd10,
            'test',
            {'language': 'de'},
            lambda root: (root / 'val2014' / 'COCO_val2014_000000000042.jpg').unlink(),
            'COCO_val2014_000000000042.jpg',
        ),
        (
            lambda root: (multi30k(root.parent), (root.parent / 'task1').rename(root)),
            'test',
            {'language': 'cs'},
            lambda root: (root / 'raw' / 'test_2016_flickr.cs.gz').write_bytes(b'\x1f\x8b broken'),
            '{root}/raw/test_2016_flickr.cs.gz cannot be read as lines of UTF-8',
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path, layout, split, options, damage, message):
    root = tmp_path / 'root'
    layout(root)
    if damage:
        damage(root)
    with pytest.raises(UserError, match=re.escape(message.format(root=root))):
        load(root, split, **options)
