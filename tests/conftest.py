"""Shared fixtures: a tiny config on scenes, its finished run, and the entry scripts as a user starts them."""

import atexit
import collections
import fcntl
import gc
import importlib.abc
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path

os.environ['JAX_PLATFORMS'] = 'cpu'


def known_flags(*flags: str) -> list[str]:
    """Returns the flags that the installed XLA knows; it ends a process, without a word of Python, at any other."""
    probe = [sys.executable, '-c', 'import jax; jax.devices()']
    unknown = subprocess.run(
        probe, env=os.environ | {'XLA_FLAGS': ' '.join(flags)}, capture_output=True, text=True
    ).stderr
    return [flag for flag in flags if flag.partition('=')[0] not in unknown]


# Tests compile much and compute little: without the compiler's costly passes they take half the time.
if 'PYTEST_XDIST_WORKER' not in os.environ:  # workers inherit them
    os.environ['XLA_FLAGS'] = ' '.join(
        known_flags(
            '--xla_backend_optimization_level=0',
            '--xla_llvm_disable_expensive_passes=true',
            '--xla_cpu_use_fusion_emitters=false',
            '--xla_cpu_parallel_codegen_split_count=1',
            *os.environ.get('XLA_FLAGS', '').split(),
        )
    )

import jax
import numpy as np
import pytest

from jitm.config import build as config_lib
from jitm.training import setup as setup_lib
from jitm.training.loop import train_and_evaluate

ROOT = Path(__file__).resolve().parent.parent
CACHE = os.environ.get('JITM_TEST_CACHE', str(ROOT / '.pytest_cache' / 'jax'))
ACCELERATORS = int(os.environ.get('JITM_TEST_ACCELERATORS', 0))  # their number in tests of `several_devices`
TOLERANCE = 1e-4 if ACCELERATORS else 1e-6  # the largest error of a float32 score
sys.path.insert(0, str(ROOT))
os.environ['XDG_CACHE_HOME'] = str(ROOT / '.pytest_cache' / 'home')


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Declares operators that torchvision's wheel for Linux needs to be imported, and has with CUDA only."""

    def find_spec(self, name, path, target=None):
        if name == 'torchvision':
            sys.meta_path.remove(self)
            from torch import library, version

            if sys.platform == 'linux' and not version.cuda and '+cpu' not in importlib.metadata.version(name):
                for operator in ('nms', 'qnms'):
                    schema = '(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor'
                    library.define(f'{name}::{operator}', schema)


sys.meta_path.insert(0, DeclareOperators())

gc.set_threshold(100_000)  # tracing makes many objects and little garbage: a fifteenth of the time would be its search
if jax.config.jax_num_cpu_devices < 0:  # else `jitm eval` takes all cores where its test is the first
    jax.config.update('jax_num_cpu_devices', 1)
jax.config.update('jax_compilation_cache_dir', CACHE)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


def missing(*names: str) -> list[str]:
    """Returns which of these packages, and of these paths from the root of the clone, are not here."""
    return [name for name in names if not ((ROOT / name).exists() if '/' in name else PathFinder.find_spec(name))]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skips a test that is marked with what is not here; CI fails at such a skip."""
    if absent := missing(*(name for mark in item.iter_markers('needs') for name in mark.args)):
        pytest.skip(f'needs {", ".join(absent)}')


def environment(**variables: str) -> dict[str, str]:
    """The environment of a subprocess: one device, and compilations shared with the other tests."""
    return os.environ | {
        'PYTHONPATH': str(ROOT),
        'JAX_NUM_CPU_DEVICES': '1',
        'JAX_COMPILATION_CACHE_DIR': CACHE,
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        **variables,
    }


def several_devices(count: int) -> tuple[int, dict[str, str]]:
    """The number of devices of a subprocess, and its environment.

    They are CPU devices, or accelerators if `python -m benchmarks device` has set their number.
    """
    if not ACCELERATORS:
        return count, environment(JAX_NUM_CPU_DEVICES=str(count))
    variables = {'JAX_PLATFORMS': '', 'XLA_FLAGS': ''}  # a flag of the CPU's compiler ends a process on a TPU
    return ACCELERATORS, environment(JAX_NUM_CPU_DEVICES=str(ACCELERATORS), **variables)


def run_script(script: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """Runs train.py or eval.py and waits."""
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True)


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The time of change and the content of each file, folder and link below a folder."""
    state = {}
    for path in sorted(folder.rglob('*')):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b''
        state[str(path.relative_to(folder))] = path.lstat().st_mtime_ns, content
    return state


UNCHANGED = {'drop_regions': 0.0, 'change_words': 0.0, 'keep_special_tokens': False, 'num_views': 1}
HINGE = {'margin': 0.2, 'end_epoch': None, 'reduction': 'sum'}
TINY = {
    'epochs': 3,
    'batch_size': 8,
    'length_multiple': 32,  # one shape, one compilation
    'data': {'source': 'scenes.load', 'seed': 0, 'train_images': 16, 'dev_images': 10, 'test_images': 10},
    'model': {'embed_dim': 16, 'text': {'word_dim': 8}},
    'terms': {
        'ranking': {**HINGE, 'loss': 'ranking.max_of_hinges', 'weight': 1.0, 'start_epoch': 0},
        'later': {**HINGE, 'loss': 'ranking.sum_of_hinges', 'weight': 0.01, 'start_epoch': 2},
    },
    'optimizer': {'learning_rate': 1e-2, 'decay_epochs': 2},
    'evaluation': {'every_steps': 15},
    'run': {'log_every': 1, 'checkpoint_every': 4},
}

TINY_FILE = """
from jitm.configs import default

def get_config():
    config = default.get_config()
    for key, value in {tiny!r}.items():
        if key in ('data', 'terms', 'labels', 'members'):
            config[key] = value
        elif isinstance(value, dict):
            config[key].update(value)
        else:
            config[key] = value
    return config
"""


def make_tiny_config() -> dict:
    """Returns the tiny config as a nested dict."""
    scope: dict = {}
    exec(TINY_FILE.format(tiny=TINY), scope)
    return scope['get_config']().to_dict()


@pytest.fixture
def tiny_config_file(tmp_path) -> Path:
    """A config file of a run of 30 steps, 3 epochs, that takes seconds."""
    path = tmp_path / 'tiny_config.py'
    path.write_text(TINY_FILE.format(tiny=TINY))
    return path


@pytest.fixture
def tiny_config() -> dict:
    """The same config as a nested dict, free to change."""
    return make_tiny_config()


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Returns a folder that `build` fills once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base
    folder, partial = root / name, root / f'{name}.partial'
    with (root / f'{name}.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            build(partial)
            partial.rename(folder)
    return folder


@pytest.fixture(scope='session')
def finished(tmp_path_factory) -> Path:
    """The directory of a finished run of the tiny config; each worker has its own copy."""
    shared = shared_folder(tmp_path_factory, 'tiny_run', lambda path: train_and_evaluate(make_tiny_config(), path))
    return shutil.copytree(shared, tmp_path_factory.mktemp('finished') / 'run')


@pytest.fixture(scope='module', autouse=True)
def memory_maps():
    """Frees compiled programs before they take more memory maps than Linux permits a process, which are 65,530."""
    yield
    maps = Path('/proc/self/maps')
    if maps.exists() and maps.read_bytes().count(b'\n') > 30_000:
        jax.clear_caches()


COMPILED = {}
compile_step = setup_lib.compile_step


def compile_once(plan, members, steps_per_epoch):
    """`compile_step`, which shares its functions with equal configs: each is traced once per process."""
    models = {name: repr(member.model) for name, member in members.items()}
    budget = plan.config['run']['activations_mb']
    parts = config_lib.training_relevant(plan.config), budget, models, steps_per_epoch, jax.device_count()
    key = json.dumps(parts, sort_keys=True)
    if key not in COMPILED:
        COMPILED[key] = compile_step(plan, members, steps_per_epoch)
    return COMPILED[key]


setup_lib.compile_step = compile_once  # for `set_up`


@pytest.fixture
def precomp_folder(tmp_path) -> Path:
    """A small folder in the field's layout: train with 8 images, dev with 4, five captions each."""
    folder = tmp_path / 'tiny_precomp'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, images in (('train', 8), ('dev', 4)):
        np.save(folder / f'{split}_ims.npy', rng.normal(size=(images, 3, 6)).astype(np.float32))
        captions = [f'a dog number {rng.integers(9)} runs past house {n}' for n in range(5 * images)]
        (folder / f'{split}_caps.txt').write_text('\n'.join(captions) + '\n', encoding='utf-8')
    return folder


_HELD = collections.deque()
atexit.register(lambda: [held.close() for held in _HELD])


def free_port() -> int:
    """A port for the coordinator of a job, which no other process is given: the socket is held, and not listened to."""
    if len(_HELD) == 64:
        _HELD.popleft().close()
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that the coordinator, too, can bind to it
    held.bind(('localhost', 0))
    _HELD.append(held)
    return held.getsockname()[1]


@pytest.fixture
def measured(tmp_path, capsys):
    """Runs a benchmark or an experiment, and returns its rows from the end of the file of results."""
    from benchmarks import command, results

    def run(*arguments, package='benchmarks'):
        command.main(package, [*arguments, f'--json={tmp_path}/results.jsonl'])
        *_, rows = results.read(tmp_path / 'results.jsonl').values()
        assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)
        return rows

    return run
