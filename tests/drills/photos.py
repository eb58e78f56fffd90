"""Wrong folders of photos: damaged images, captions and lists, as rows of the table of `inputs`."""

import functools
import io
import json
import os
import shutil
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from jitm.configs import common
from tests.drills import runs
from tests.drills.inputs import NEW, Row, edit, make_pipe
from tests.support.configs import write_config

METADATA = 'photos/train/metadata.jsonl'
PHOTO = 'photos/train/3.jpg'
IMAGES = {'train': 8, 'dev': 4}


def write_base(folder: Path, sizes: Mapping[str, int] = IMAGES) -> None:
    """Writes a folder of photos, with so many images of each split, and a config file that trains on them."""
    rng = np.random.default_rng(0)
    for split, images in sizes.items():
        inner = folder / 'photos' / split
        inner.mkdir(parents=True)
        rows = []
        for n in range(images):
            Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(inner / f'{n}.jpg')
            rows.append({'file_name': f'{n}.jpg', 'captions': [f'a dog runs past house {n}', 'a dog']})
        (inner / 'metadata.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    data = common.photos('photos', image_size=32, short_side=36)
    write_config(folder / 'config.py', runs.make_config(data=data))


def _image(make: Callable[[], Image.Image], kind: str = 'PNG') -> Callable[[bytes], bytes]:
    """Returns a function that replaces a file by another image."""

    def change(data: bytes) -> bytes:
        file = io.BytesIO()
        make().save(file, kind)
        return file.getvalue()

    return change


def _image_of(width: int, height: int) -> Callable[[bytes], bytes]:
    """Returns a function that replaces a file by a PNG file that claims a size."""
    header, data_chunk = b'IHDR' + struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0), b'\0\0\0\1IDAT' + bytes(9)
    return lambda data: b'\x89PNG\r\n\x1a\n\0\0\0\r' + header + struct.pack('>I', zlib.crc32(header)) + data_chunk


BLACK = functools.partial(Image.new, 'RGB')
FILES = {
    'missing': (None, '3.jpg cannot be read .No such file'),
    'empty': (lambda data: b'', 'is empty: replace the file'),
    'a page': (lambda data: b'<html>404</html>', 'is not an image'),
    'zeros': (lambda data: bytes(len(data)), 'is not an image'),
    'a header': (lambda data: data[:100], 'is not an image'),
    'cut off': (lambda data: data[: len(data) // 2], 'is damaged or cut off'),
    'the last bytes missing': (lambda data: data[:-40], 'is damaged or cut off'),
    'a PNG cut off': (lambda data: _image(lambda: BLACK((64, 64)))(data)[:-30], 'is damaged or cut off'),
    'a video': (lambda data: b'\0\0\0\x18ftypmp42' + bytes(100), 'is not an image'),
    'a drawing': (lambda data: b'<svg xmlns="http://www.w3.org/2000/svg"/>', 'is not an image'),
    'narrow': (_image(lambda: BLACK((400, 2))), 'no side may be 50 times the other'),
    'huge': (_image(lambda: Image.new('1', (9500, 9500))), '9500 x 9500 pixels: shrink it'),
    'a bomb': (_image_of(30000, 30000), 'has too many pixels for Pillow: shrink it'),
    'HEIC': (lambda data: b'\0\0\0\x18ftypheic\0\0\0\0mif1heic' + bytes(100), 'is not an image'),
    'a PNG of nothing': (
        lambda data: _image(lambda: BLACK((64, 64)))(data).replace(b'IDAT', b'IDAX', 1),
        'is not an image that Pillow can read',
    ),
    'of floats': (_image(lambda: Image.new('F', (9, 9)), 'TIFF'), 'more than 16 bits'),
}


def _rows_of(change: Callable[[list[dict]], object]) -> Callable[[bytes], bytes]:
    """Returns a function that changes the rows of `metadata.jsonl`."""

    def apply(data: bytes) -> bytes:
        rows = [json.loads(line) for line in data.splitlines()]
        change(rows)
        return '\n'.join(map(json.dumps, rows)).encode()

    return apply


CAPTIONS = {
    'missing': (None, "has no captions of the split 'train'"),
    'empty': (lambda data: b'', 'has no images'),
    'blank': (lambda data: b'\n \n', 'has no images'),
    'no JSON': (lambda data: data.replace(b'}', b'', 1), 'line 1 is not a JSON object'),
    'deep': (lambda data: b'[' * 100000, 'line 1 is not a JSON object'),
    'a list': (lambda data: b'[1]\n' + data, 'line 1 is not a JSON object'),
    'Latin-1': (lambda data: data.replace(b'dog', b'd\xf6g', 1), 'is not UTF-8'),
    'no file_name': (_rows_of(lambda rows: rows[2].pop('file_name')), "line 3 has no valid 'file_name'"),
    'no captions': (
        _rows_of(lambda rows: [row.update(captions=[None]) for row in rows]),
        'line 1 has no captions, nor',
    ),
    'a number': (_rows_of(lambda rows: rows[2].update(captions=[7])), 'line 3 has the caption 7, which is not a text'),
    'an unknown file': (_rows_of(lambda rows: rows[2].update(file_name='x.jpg')), 'x.jpg cannot be read'),
    'all unknown': (lambda data: data.replace(b'.jpg', b'.gif'), 'names 0.gif, which is not in'),
    'a long name': (_rows_of(lambda rows: rows[0].update(file_name='x' * 300)), 'x, which is not in .*: add the file'),
    'a long name later': (_rows_of(lambda rows: rows[2].update(file_name='x' * 300)), 'cannot be read .File name too'),
    'a NUL': (_rows_of(lambda rows: rows[2].update(file_name='\0.jpg')), 'is not a path within its folder'),
    'half a surrogate': (_rows_of(lambda rows: rows[2].update(file_name='\ud800.jpg')), 'is not UTF-8: rename'),
    'a line break': (_rows_of(lambda rows: rows[2].update(file_name='a\n.jpg')), 'has control characters'),
    'its folder': (_rows_of(lambda rows: rows[2].update(file_name='.')), 'not a path within its folder'),
    'a file above': (_rows_of(lambda rows: rows[2].update(file_name='../dev/0.jpg')), 'not a path within its folder'),
    'an absolute path': (_rows_of(lambda rows: rows[2].update(file_name='/etc/x.jpg')), 'is an absolute path'),
    'an empty name': (_rows_of(lambda rows: rows[2].update(file_name='')), 'not a path within its folder'),
    'few captions': (_rows_of(lambda rows: rows.__delitem__(slice(3, None))), 'fewer than batch_size'),
}


def _replace(make: Callable[[Path], object], name: str = '3.jpg') -> Callable[[Path], None]:
    """Returns a function that makes something else than a file of a photo, which may get another name."""

    def spoil(folder: Path) -> None:
        edit(METADATA, lambda data: data.replace(b'3.jpg', os.fsencode(name)))(folder)
        path = folder / PHOTO
        path.unlink()
        make(path.with_name(name))

    return spoil


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # the drill is in the folder; the name of a socket must be short


def _make_sparse(path: Path) -> None:
    with path.open('wb') as file:
        file.truncate(2**40)


ODD_FILES = {
    'a FIFO': (_replace(os.mkfifo), 'it is not a regular file'),
    'a socket': (_replace(_make_socket), 'it is not a regular file'),
    'a device': (_replace(lambda path: path.symlink_to('/dev/zero')), 'it is not a regular file'),
    'sparse': (_replace(_make_sparse), 'has 1099511627776 bytes: shrink it to at most'),
    'a folder': (_replace(Path.mkdir), 'cannot be read .Is a directory'),
    'a link to itself': (_replace(lambda path: path.symlink_to(path.name)), 'Too many levels of symbolic links'),
    'a link to nothing': (_replace(lambda path: path.symlink_to('nothing')), 'cannot be read .No such file'),
    'a RAW file': (_replace(lambda path: BLACK((64, 64)).save(path, 'TIFF'), '3.NEF'), 'is a RAW file of a camera'),
}


def _instead(name: str, text: str, *others: tuple[str, str]) -> Callable[[Path], None]:
    """Returns a function that writes other files of captions instead of `metadata.jsonl`."""

    def spoil(folder: Path) -> None:
        (folder / METADATA).unlink()
        for path, content in ((name, text), *others):
            (folder / 'photos' / path).write_text(content)

    return spoil


def _karpathy(**image: object) -> str:
    whole = {'filename': '0.jpg', 'split': 'train', 'sentences': [{'raw': 'a dog'}]} | image
    return json.dumps({'images': [whole]})


def _coco(*images: dict, **annotation: object) -> str:
    whole = {'image_id': 1, 'caption': 'a dog'} | annotation
    return json.dumps({'images': images or [{'id': 1, 'file_name': '0.jpg'}], 'annotations': [whole]})


def _move_dev(*names: str) -> Callable[[Path], None]:
    """Returns a function that copies the folder of dev to other names and removes it."""

    def spoil(folder: Path) -> None:
        for name in names:
            shutil.copytree(folder / 'photos' / 'dev', folder / 'photos' / name)
        shutil.rmtree(folder / 'photos' / 'dev')

    return spoil


def _write_second(folder: Path) -> None:
    (folder / 'photos' / 'train' / 'metadata.csv').write_text('file_name,text\n0.jpg,a cat\n')


LIST = 'train.txt', '0.jpg\n'
OTHER_FILES = {
    'CSV without captions': (
        _instead('train/metadata.csv', 'file_name\n0.jpg\n'),
        "train/metadata.csv starts with 'file_name'; name",
    ),
    'CSV with an open quote': (
        _instead('train/metadata.csv', 'file_name,text\n0.jpg,"a\n'),
        'has a field with an open quote',
    ),
    'CSV with a comma': (
        _instead('train/metadata.csv', 'file_name,caption_0,caption_1\n0.jpg,a dog,a cat\n1.jpg,a dog, running,b\n'),
        'metadata.csv, line 3 has 4 fields, but the header has 3: add what is missing, or put quotes around a caption',
    ),
    'two files of metadata': (_write_second, 'has train/metadata.csv and train/metadata.jsonl: leave one of them'),
    'two folders of dev': (
        _move_dev('val', 'validation'),
        'has val/metadata.jsonl and validation/metadata.jsonl: leave one of them',
    ),
    'karpathy: no images': (_instead('dataset_x.json', '[]'), r'dataset_x.json has \[\]; name'),
    'karpathy: no split': (_instead('dataset_x.json', _karpathy(split=None)), "no valid 'split'"),
    'karpathy: other split': (_instead('dataset_x.json', _karpathy(split='tarin')), "no images of the split 'train'"),
    'karpathy: no raw': (_instead('dataset_x.json', _karpathy(sentences=[{}])), 'has no captions, nor'),
    'karpathy: two files': (_instead('dataset_x.json', _karpathy(), ('y.json', _karpathy())), 'leave one of them'),
    'coco: no JSON': (_instead('captions_train2017.json', '{'), 'line 1 is not a JSON object'),
    'coco: no annotations': (_instead('captions_train2017.json', '{"images": {}}'), "has no list 'images'"),
    'coco: another image': (_instead('captions_train2017.json', _coco(image_id=2)), 'image_id 2'),
    'coco: no caption': (_instead('captions_train2017.json', _coco(caption=None)), 'has no captions, nor'),
    'coco: a list as id': (
        _instead('captions_train2017.json', _coco({'id': [1], 'file_name': '0.jpg'})),
        r"images.0. has no valid 'id'",
    ),
    'coco: no id': (_instead('captions_train2017.json', _coco({'file_name': '0.jpg'})), "no valid 'id'"),
    'coco: an id twice': (
        _instead('captions_train2017.json', _coco(*({'id': 1, 'file_name': f'{n}.jpg'} for n in range(2)))),
        r'images.1. has the id 1 of another image',
    ),
    'coco: a list as image_id': (
        _instead('captions_train2017.json', _coco(image_id=[1])),
        r"annotations.0. has no valid 'image_id'",
    ),
    'coco: no ids': (
        _instead('captions_train2017.json', _coco({'file_name': '0.jpg'}, image_id=None)),
        "no valid 'id'",
    ),
    'flickr: no list': (_instead('captions.txt', 'image,caption\n0.jpg,a\n'), 'has 0 files that list the images'),
    'flickr: no comma': (
        _instead('captions.txt', '0.jpg a dog\n', LIST),
        "captions.txt starts with '0.jpg a dog'",
    ),
    'flickr: no tab': (_instead('a.token', '0.jpg#0 a dog\n', LIST), "a.token starts with '0.jpg#0 a dog'"),
    'flickr: no captions': (_instead('captions.txt', 'image,caption\n', LIST), 'has no caption of 0.jpg'),
}
KEYS = {
    'image_size=64': 'it must be at least 64',
    'short_side=31': 'short_side is 31; it must be at least 32|short_side.* 31',
    'interpolation=cubic': 'interpolation',
    'crop=center': 'did you mean',
    'min_area=0.0': 'min_area',
    'root=absent': 'is not a folder',
}


def rows() -> Iterator[Row]:
    """Yields the table."""
    for name, (change, sentence) in FILES.items():
        yield Row(f'{PHOTO}: {name}', NEW, edit(PHOTO, change), sentence)
    for name, (spoil, sentence) in ODD_FILES.items():
        yield Row(f'{PHOTO}: {name}', NEW, spoil, sentence)
    for name, (change, sentence) in CAPTIONS.items():
        yield Row(f'{METADATA}: {name}', NEW, edit(METADATA, change), sentence)
    for name, (spoil, sentence) in OTHER_FILES.items():
        yield Row(name, NEW, spoil, sentence)
    for key, sentence in KEYS.items():
        yield Row(f'data.{key}', (*NEW, f'--config.data.{key}'), None, sentence)
    yield Row(f'{METADATA}: a pipe', NEW, make_pipe(METADATA), 'it is not a regular file')
    yield Row('a model of regions', NEW, None, 'has pixels and no region features')
