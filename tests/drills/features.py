"""Wrong uses of features that were encoded from photos, as rows of the table of `inputs`."""

from collections.abc import Iterator
from pathlib import Path

from tests.drills import photos, runs
from tests.drills.inputs import Row, edit
from tests.training.models import make_clip

ENCODE = 'encode', '--workdir', 'run', '--out', 'new'
AGAIN = 'encode', '--workdir', 'run', '--out', 'encoded'
SEARCH = 'search', '--workdir', 'small', '--images', 'photos/dev', 'a dog'


def write_base(folder: Path) -> None:
    """Writes photos, a CLIP that is trained on them, `run`, its features, `encoded`, and a run on these, `small`."""
    photos.write_base(folder)
    runs.write_config(folder / 'config.py', make_clip('photos') | {'epochs': 1, 'batch_size': 8})
    data = {'source': 'precomp.load', 'root': 'encoded', 'dev_images': 1000}
    runs.write_config(folder / 'small.py', runs.make_config(data=data))
    train = 'train', '--config', 'small.py', '--workdir', 'small'
    with runs.inside(folder):
        for argv in (runs.TRAIN, AGAIN, train):
            result = runs.call(argv)
            assert result.code == 0, result.error


ENCODED = [
    (('encode', '--out', 'new'), 'give either --workdir or --config'),
    ((*ENCODE, '--config', 'config.py'), 'give either --workdir or --config'),
    (('encode', '--workdir', 'absent', '--out', 'new'), 'absent'),
    (('encode', '--workdir', 'photos', '--out', 'new'), 'not a run directory'),
    (('encode', '--workdir', 'small', '--out', 'new'), ''),
    (('encode', '--config', 'small.py', '--out', 'new'), 'VSE as configured has no network that reads pixels'),
    (
        ('encode', '--config', 'config.py', '--member', 'x', '--out', 'new'),
        "the config has no member 'x'; it has target",
    ),
    ((*ENCODE, '--images', 'photos/dev', '--split', 'dev'), '--images is read instead of --split'),
    ((*ENCODE, '--images', 'absent'), 'absent'),
    ((*ENCODE, '--images', 'config.py'), 'config.py'),
    ((*ENCODE, '--images', 'run'), ''),
    ((*ENCODE, '--split', 'tset'), "has no captions of the split 'tset'"),
    ((*ENCODE, '--data_root', 'absent'), 'absent'),
    ((*ENCODE, '--data_root', 'encoded'), ''),
    ((*ENCODE, '--step', '99'), 'checkpoint .* is missing'),
    ((*ENCODE, '--member', 'x'), "has no member 'x'"),
    ((*ENCODE, '--crops', '3'), 'crops is 3: use 1 or 10'),
    ((*ENCODE, '--crops', '10'), 'use --crops 1'),
    ((*ENCODE, '--dtype', 'float64'), 'dtype'),
    ((*ENCODE[:-1], 'config.py'), 'config.py'),
    ((*ENCODE[:-1], 'photos'), 'photos is not empty and is not a set of encoded features'),
    ((*AGAIN, '--dtype', 'float16'), r'has other features than these \(dtype\)'),
]
SEARCHED = [
    ((*SEARCH, '--encoder', 'absent'), 'absent'),
    ((*SEARCH, '--encoder', 'small'), ''),
    ((*SEARCH, '--encoder', 'config.py'), ''),
    ((*SEARCH, '--encoder', 'photos'), ''),
    ((*SEARCH, '--encoder', '/dev/null'), ''),
    (('search', '--workdir', 'run', '--images', 'photos/dev', '--encoder', 'run', 'a dog'), 'encoder'),
    (('search', '--workdir', 'small', '--images', 'encoded/dev_ims.npy', '--encoder', 'run', 'a dog'), 'encoder'),
]
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
    for argv, sentence in ENCODED + SEARCHED:
        yield Row(' '.join(argv), argv, None, sentence)
    for name, (argv, spoil, sentence) in SPOILED.items():
        yield Row(name, argv, spoil, sentence)
