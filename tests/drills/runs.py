"""A folder with data, a config file and a trained run, and the commands that are tried in it."""

import contextlib
import copy
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.commands import cli
from jitm.config import build as config_lib
from jitm.runs.checkpoint import Checkpoints
from tests.conftest import make_tiny_config
from tests.support.configs import write_config

EVALUATE = ('eval', '--workdir', 'run', '--output', 'evaluated')
MINE = ('mine', '--workdir', 'run', '--out', 'mined', '--top_h_texts', '3', '--top_h_images', '3')
SEED = 0  # one of those whose best checkpoint is not the last one
TRAIN = ('train', '--config', 'config.py', '--workdir', 'run')


REPORT = ('report', 'run', '--output', 'reported/page.html', '--rows', 'reported/rows.jsonl')

# Commands, and what their messages say, or what their names are.
LISTED = json.loads(Path(__file__).with_name('commands.json').read_text())
# Values of keys, assignments, config files, and third lines of ids and captions, and what their messages say. Of ranges
# this comes first, and NaN is not finite anywhere.
VALUES = json.loads(Path(__file__).with_name('values.json').read_text())


class Result(NamedTuple):
    """How a command ended; `warnings` are those that it would print to stderr."""

    code: int
    output: str
    error: str
    warnings: tuple[str, ...] = ()


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collects what is logged within the block instead of printing it."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    handlers, logging.root.handlers = logging.root.handlers, [handler]
    try:
        yield messages
    finally:
        logging.root.handlers = handlers


def call(argv: tuple[str, ...]) -> Result:
    """Runs a command of jitm in this process."""
    output, error = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(output), contextlib.redirect_stderr(error)
    with streams[0], streams[1], collected_warnings() as messages, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            code = cli.main(argv)
        except SystemExit as exited:
            code = exited.code
        except BaseException as raised:  # a traceback for the user, which is what is looked for
            return Result(1, output.getvalue(), f'{error.getvalue()}Traceback: {raised!r}')
    return Result(code, output.getvalue(), error.getvalue(), tuple(messages))


def make_config(**sections: Any) -> dict[str, Any]:
    """Returns the tiny config with other sections, as a nested dict; one epoch on the folder `data`."""
    config = make_tiny_config()
    data = {'source': 'precomp.load', 'root': 'data', 'dev_images': 1000}
    config |= {'data': data, 'epochs': 1, 'length_multiple': 32}
    config['vocabulary'] |= {'min_count': 1}
    config['run'] |= {'checkpoint_every': 2, 'prefetch': 1}
    return config | copy.deepcopy(sections)


def without(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns a copy of a config without a dotted key."""
    config = copy.deepcopy(dict(config))
    *sections, last = key.split('.')
    node = config
    for section in sections:
        node = node[section]
    del node[last]
    return config


def keys_of(config: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys of all values of a config."""
    return sorted(config_lib.flatten(config))


def write_data(folder: Path) -> None:
    """Writes a data set of 8 images for training and 8 for validation, with five captions each."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, images in (('train', 8), ('dev', 8)):
        np.save(folder / f'{split}_ims.npy', rng.normal(size=(images, 3, 6)).astype(np.float32))
        captions = [f'a dog number {rng.integers(9)} runs past house {n}' for n in range(5 * images)]
        (folder / f'{split}_caps.txt').write_text('\n'.join(captions) + '\n', encoding='utf-8')
        (folder / f'{split}_ids.txt').write_text(''.join(f'{split}{n}\n' for n in range(images)))
    (folder / 'dataset.txt').write_text('tiny\n')


def write_base(folder: Path) -> None:
    """Writes `data`, `config.py` and its trained run, `run`, whose best checkpoint is not the last one."""
    write_data(folder / 'data')
    write_config(folder / 'config.py', make_config(epochs=3, seed=SEED))
    with inside(folder):
        result = call(TRAIN)
    assert result.code == 0, result.error
    with Checkpoints(folder / 'run') as checkpoints:
        assert 0 < checkpoints.best_step() < checkpoints.steps()[-1]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Makes a folder the working directory within the block."""
    start = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(start)


@contextlib.contextmanager
def copy_of(base: Path, folder: Path) -> Iterator[Path]:
    """Copies a folder, makes the copy the working directory within the block, and removes it."""
    shutil.copytree(base, folder)
    try:
        with inside(folder):
            yield folder
    finally:
        shutil.rmtree(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of all files."""
    # Unlike rglob, os.walk passes over a folder that a thread removes meanwhile.
    paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    files = (path for path in paths if path.is_file() and path.stat().st_size < 2**30)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
