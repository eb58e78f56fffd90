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


def _changed_row(number: int | None, changes: Mapping[str, object]) -> Callable[[bytes], bytes]:
    """Returns a function that changes a row of `metadata.jsonl`, or all of them."""

    def apply(data: bytes) -> bytes:
        rows = [json.loads(line) for line in data.splitlines()]
        for row in rows if number is None else [rows[number]]:
            row.update(changes)
        return '\n'.join(map(json.dumps, rows)).encode()

    return apply


# Rows of `metadata.jsonl`, files instead of it, and keys of the config, with what the messages say.
LISTED = json.loads(Path(__file__).with_name('photos.json').read_text())
CAPTIONS = {
    'missing': (None, "has no captions of the split 'train'"),
    'empty': (lambda data: b'', 'has no images'),
    'blank': (lambda data: b'\n \n', 'has no images'),
    'no JSON': (lambda data: data.replace(b'}', b'', 1), 'line 1 is not a JSON object'),
    'deep': (lambda data: b'[' * 100000, 'line 1 is not a JSON object'),
    'a list': (lambda data: b'[1]\n' + data, 'line 1 is not a JSON object'),
    'Latin-1': (lambda data: data.replace(b'dog', b'd\xf6g', 1), 'is not UTF-8'),
    'all unknown': (lambda data: data.replace(b'.jpg', b'.gif'), 'names 0.gif, which is not in'),
    'few captions': (lambda data: data[: data.index(b'3.jpg')].rpartition(b'\n')[0], 'fewer than batch_size'),
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


def _instead(files: Mapping[str, str]) -> Callable[[Path], None]:
    """Returns a function that writes other files of captions instead of `metadata.jsonl`."""

    def spoil(folder: Path) -> None:
        (folder / METADATA).unlink()
        for name, content in files.items():
            (folder / 'photos' / name).write_text(content)

    return spoil


def _move_dev(*names: str) -> Callable[[Path], None]:
    """Returns a function that copies the folder of dev to other names and removes it."""

    def spoil(folder: Path) -> None:
        for name in names:
            shutil.copytree(folder / 'photos' / 'dev', folder / 'photos' / name)
        shutil.rmtree(folder / 'photos' / 'dev')

    return spoil


def _write_second(folder: Path) -> None:
    (folder / 'photos' / 'train' / 'metadata.csv').write_text('file_name,text\n0.jpg,a cat\n')


TWICE = {
    'two files of metadata': (_write_second, 'has train/metadata.csv and train/metadata.jsonl: leave one of them'),
    'two folders of dev': (
        _move_dev('val', 'validation'),
        'has val/metadata.jsonl and validation/metadata.jsonl: leave one of them',
    ),
}


def rows() -> Iterator[Row]:
    """Yields the table."""
    for name, (change, sentence) in FILES.items():
        yield Row(f'{PHOTO}: {name}', NEW, edit(PHOTO, change), sentence)
    for name, (spoil, sentence) in ODD_FILES.items():
        yield Row(f'{PHOTO}: {name}', NEW, spoil, sentence)
    for name, (change, sentence) in CAPTIONS.items():
        yield Row(f'{METADATA}: {name}', NEW, edit(METADATA, change), sentence)
    for name, (number, changes, sentence) in LISTED['rows'].items():
        yield Row(f'{METADATA}: {name}', NEW, edit(METADATA, _changed_row(number, changes)), sentence)
    for name, (files, sentence) in LISTED['files'].items():
        yield Row(name, NEW, _instead(files), sentence)
    for name, (spoil, sentence) in TWICE.items():
        yield Row(name, NEW, spoil, sentence)
    for key, sentence in LISTED['keys'].items():
        yield Row(f'data.{key}', (*NEW, f'--config.data.{key}'), None, sentence)
    yield Row(f'{METADATA}: a pipe', NEW, make_pipe(METADATA), 'it is not a regular file')
    yield Row('a model of regions', NEW, None, 'has pixels and no region features')
