"""Wrong uses of features that were encoded from photos, as rows of the table of `inputs`."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.drills import photos, runs
from tests.drills.inputs import Row, edit
from tests.support.configs import write_config
from tests.support.steps import make_clip

ENCODE = 'encode', '--workdir', 'run', '--out', 'new'
AGAIN = 'encode', '--workdir', 'run', '--out', 'encoded'


def write_base(folder: Path) -> None:
    """Writes photos, a CLIP that is trained on them, `run`, its features, `encoded`, and a run on these, `small`."""
    photos.write_base(folder)
    write_config(folder / 'config.py', make_clip('photos') | {'epochs': 1, 'batch_size': 8})
    data = {'source': 'precomp.load', 'root': 'encoded', 'dev_images': 1000}
    write_config(folder / 'small.py', runs.make_config(data=data))
    train = 'train', '--config', 'small.py', '--workdir', 'small'
    with runs.inside(folder):
        for argv in (runs.TRAIN, AGAIN, train):
            result = runs.call(argv)
            assert result.code == 0, result.error


SPOILED = {
    'encoded.json is a list': (AGAIN, edit('encoded/encoded.json', lambda data: b'[]'), ''),
    'encoded.json is nested too deeply': (AGAIN, edit('encoded/encoded.json', lambda data: b'[' * 10**5), 'damaged'),
    'encoded.json is cut off': (AGAIN, edit('encoded/encoded.json', lambda data: data[:40]), 'damaged'),
    'encoded.json is missing': (AGAIN, edit('encoded/encoded.json', None), ''),
    'a photo is empty': (ENCODE, edit('photos/train/3.jpg', lambda data: b''), 'is empty: replace the file'),
    'a photo is cut off': (ENCODE, edit('photos/train/3.jpg', lambda data: data[:300]), ''),
}


def rows() -> Iterator[Row]:
    """Yields the table."""
    for line, sentence in runs.LISTED['encoded photos'].items():
        yield Row(line, (*shlex.split(line),), None, sentence)
    for name, (argv, spoil, sentence) in SPOILED.items():
        yield Row(name, argv, spoil, sentence)
