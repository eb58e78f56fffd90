"""Wrong inputs: each ends with exit code 2 and one line on stderr, and changes no file."""

import itertools
import math
import os
import random
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.commands import cli
from jitm.errors import EXIT_USER_ERROR
from jitm.files import LOCK
from jitm.runs.checkpoint import Checkpoints
from tests.drills import foreign, jobs, kills, runs
from tests.support.configs import changed, write_config


class Row(NamedTuple):
    """A wrong input.

    Attributes:
      name: of the row.
      argv: the command.
      spoil: changes the folder of `runs.write_base`; None for no change.
      sentence: a regular expression that the message contains.
      job: the commands of all processes, if the command is one of a job.
    """

    name: str
    argv: tuple[str, ...]
    spoil: Callable[[Path], object] | None = None
    sentence: str = ''
    job: tuple[tuple[str, ...], ...] = ()


def _restore(folder: Path, original: Mapping[str, bytes]) -> None:
    """Makes a copy of a folder what it was."""
    now = runs.contents(folder)
    kept = {str(parent) for name in original for parent in (Path(name), *Path(name).parents)}
    for path in sorted(folder.rglob('*'), reverse=True):
        if path.is_symlink() or not path.is_dir():
            name = str(path.relative_to(folder))
            if now.get(name, b'') != original.get(name) or path.is_symlink():
                path.unlink()
        elif str(path.relative_to(folder)) in original or str(path.relative_to(folder)) not in kept:
            path.rmdir()
    for name, data in original.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def check(row: Row, base: Path, folder: Path) -> str | None:
    """Tries an input in a copy of a folder.

    Args:
      row: the input.
      base: the folder of `runs.write_base`.
      folder: the copy, which is made where it is absent and restored after each input.

    Returns:
      What is wrong about how the command ended; None if nothing is.
    """
    if not folder.exists():
        shutil.copytree(base, folder)
    imported = set(sys.modules)
    with runs.inside(folder):
        if row.spoil:
            row.spoil(folder)
        before = runs.contents(folder)
        results = jobs.call(row.job, folder) if row.job else [runs.call(row.argv)]
        altered = {name for name, _ in before.items() ^ runs.contents(folder).items() if Path(name).name != LOCK}
    for name in sys.modules.keys() - imported:  # modules of the copy
        if str(getattr(sys.modules[name], '__file__', None)).startswith(str(folder)):
            del sys.modules[name]
    if row.spoil or row.job or altered:
        _restore(folder, runs.contents(base))
    for code, output, error, warnings in results:
        if (code, output, warnings) != (EXIT_USER_ERROR, '', ()) or not re.fullmatch(r'error: .+\n', error):
            return f'exit code {code}, output {output[:200]!r}, warnings {warnings}, error {error[-600:]!r}'
        if not re.search(row.sentence, error):
            return f'the message lacks {row.sentence!r}: {error}'
    return f'{sorted(altered)} changed' if altered else None


NEW = ('train', '--config', 'config.py', '--workdir', 'new')
WRONG_VALUES = {'a word': 'fast', 'a list': ['x'], 'a dict': {'x': 1}}
OPTIONAL = {  # arguments with a default
    'data.dev_images',
    'members.target.init_from',
    'members.target.learn_from',
    'members.target.rule',
    'model.text.recurrent',
    'candidates.num_negatives',
    'model.text.word_init',
}


def _configured(config: Mapping[str, Any]) -> Callable[[Path], None]:
    """Returns a function that writes the config file."""
    return lambda folder: write_config(folder / 'config.py', config)


def config_rows() -> Iterator[Row]:
    """Yields each key with values of other kinds, without it, and misspelled."""
    config = runs.make_config()
    for key in runs.keys_of(config):
        for kind, value in WRONG_VALUES.items():
            yield Row(f'{key} is {kind}', NEW, _configured(changed(config, {key: value})))
        if key not in OPTIONAL:
            yield Row(
                f'{key} is missing',
                NEW,
                _configured(runs.without(config, key)),
                rf"'[\w.]*{key.rpartition('.')[2]}' is missing",
            )
        misspelled = '--config.' + key[:-1] + '=1'
        yield Row(f'{key} is misspelled', (*NEW, misspelled), None, r"config key '.*' is unknown")


ADAPTIVE = kills.HINGE | {'loss': 'ranking.adaptive_margin'}
MARGINS = {  # of captions of 8 images
    'absent': (lambda path: None, 'margins.npy cannot be read'),
    'small': (
        lambda path: np.save(path, np.zeros((3, 15), np.float32)),
        r'has shape \(3, 15\), but data/train has 8 im',
    ),
    'not finite': (lambda path: np.save(path, np.full((8, 40), np.nan, np.float32)), 'margins.npy'),
}


def range_rows() -> Iterator[Row]:
    """Yields each number with values out of its range."""
    config = runs.make_config()
    for key, (bounds, *values) in runs.VALUES['ranges'].items():
        for value in values:
            sentence = f"'{key}' is {value}; it {bounds if math.isfinite(value) else 'must be finite'}"
            yield Row(f'{key} is {value}', NEW, _configured(changed(config, {key: value})), sentence)


def _with_margins(config: Mapping[str, Any], write: Callable[[Path], None]) -> Callable[[Path], None]:
    """Returns a function that writes the config file and the margins."""

    def spoil(folder: Path) -> None:
        write_config(folder / 'config.py', config)
        write(folder / 'margins.npy')

    return spoil


def value_rows() -> Iterator[Row]:
    """Yields wrong values of one key, and keys that contradict each other."""
    config = runs.make_config()
    stages = kills.two_stages()
    tuned = changed(stages, {'stages.fine_tune': True, 'stages.top_h_texts': 0, 'stages.top_h_images': 0})
    tuned['terms'] = config['terms']
    for kind, start in (('values', config), ('two stages', stages), ('fine-tuning', tuned)):
        for key, value, sentence in runs.VALUES[kind]:
            yield Row(f'{kind}: {key} is {value!r}', NEW, _configured(changed(start, {key: value})), sentence)
    for kind, preset in (('together', 'config.py'), ('a preset of two stages', 'aoq:vsepp,adapoffquin,f8k')):
        for line, sentence in runs.VALUES[kind].items():
            argv = 'train', '--config', preset, '--workdir', 'new', *(f'--config.{word}' for word in line.split())
            yield Row(line, argv, None, sentence)
    lacking = runs.without(stages, 'stages.first.terms')
    yield Row('a first stage without terms', NEW, _configured(lacking), "'stages.first.terms' is missing")
    adaptive = changed(config, {'terms.ranking': ADAPTIVE})
    adaptive['relevance'] = {'source': 'cider.from_file', 'path': 'margins.npy'}
    for name, (write, sentence) in MARGINS.items():
        yield Row(f'margins: {name}', NEW, _with_margins(adaptive, write), sentence)


OWN = """
def wrong(scores, positives, negatives, *, margin):
    return scores.maximum(0)


def other(x, y):
    return x
"""
OWN_LOSSES = {
    'wrong': r'line 3 of .*own.py: return scores.maximum\(0\)',
    'other': 'it must have scores, positives and negatives first',
}


def own_rows() -> Iterator[Row]:
    """Yields losses of the user's own module that are wrong."""
    for name, sentence in OWN_LOSSES.items():
        argv = *NEW, f'--config.terms.ranking.loss=own.{name}'
        yield Row(f'own.{name}', argv, lambda folder: (folder / 'own.py').write_text(OWN), sentence)


def config_file_rows() -> Iterator[Row]:
    """Yields config files that are none."""
    for name, (text, sentence) in runs.VALUES['config files'].items():
        yield Row(f'config file: {name}', NEW, lambda folder, t=text: (folder / 'config.py').write_text(t), sentence)
    yield Row('config file: a pipe', NEW, make_pipe('config.py'), 'config.py is not a regular file')


def _array(change: Callable[[np.ndarray], object], split: str) -> Callable[[Path], None]:
    """Returns a function that saves features that `change` changes or returns."""

    def spoil(folder: Path) -> None:
        path = folder / 'data' / f'{split}_ims.npy'
        features = np.load(path)
        result = change(features)
        np.save(path, features if result is None else result, allow_pickle=True)

    return spoil


def _put(value: float) -> Callable[[np.ndarray], None]:
    def change(features: np.ndarray) -> None:
        features[5, 1, 2] = value

    return change


class _Touch:
    """Unpickling one makes a file."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path('touched'),)


ARRAYS = {
    'NaN': (_put(np.nan), 'ims.npy, row 5 has NaN or infinite features'),
    'infinite': (_put(np.inf), 'ims.npy, row 5 has NaN or infinite features'),
    'float64': (lambda x: x.astype(np.float64), 'ims.npy has dtype float64: convert'),
    'integers': (lambda x: x.astype(np.int32), 'dtype int32: convert'),
    'complex': (lambda x: x.astype(np.complex64), 'dtype complex64: convert'),
    'of another byte order': (lambda x: x.astype('>f4'), 'dtype >f4: convert'),
    'objects': (lambda x: np.array([_Touch()] * 8), 'with arrays padded to one shape'),
    'text': (lambda x: np.array(['a'] * 8), 'dtype <U1: convert'),
    'no image': (lambda x: x[:0], r'ims.npy has shape \(0, 3, 6\), which is empty: write it again'),
    'no region': (lambda x: x[:, :0], 'which is empty'),
    'no feature': (lambda x: x[..., :0], 'which is empty'),
    'a scalar': (lambda x: x[0, 0, 0], r'ims.npy has shape \(\): it must be'),
    'one dimension': (lambda x: x[:, 0, 0], r'ims.npy has shape \(8,\): it must be'),
    'four dimensions': (lambda x: x[None], r'has shape \(1, 8, 3, 6\): it must be'),
    'seven images': (lambda x: x[:7], 'has 7 images for 40 captions: give every image'),
    'other size': (lambda x: x[:, :, :5], r'train has \d features per region and data/dev \d'),
}


def _replaced(at: int, by: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + by + data[at + len(by) :]


BYTES = {
    'missing': (None, 'cannot be read .No such file or directory.: add the file, or make it readable'),
    'empty': (lambda data: b'', 'is no .npy file'),
    'one byte': (lambda data: data[:1], 'is no .npy file'),
    'a header cut off': (lambda data: data[:60], 'is no .npy file, damaged or cut off'),
    'cut off': (lambda data: data[: len(data) // 2], 'is no .npy file, damaged or cut off .mmap length is greater'),
    'a byte less': (lambda data: data[:-1], 'is no .npy file, damaged or cut off .mmap length is greater'),
    'zeros': (lambda data: bytes(len(data)), 'is no .npy file'),
    'a picture': (lambda data: b'\xff\xd8\xff\xe0\0\x10JFIF' + bytes(100), 'is no .npy file'),
    'another version': (_replaced(6, b'\x09'), 'is no .npy file, damaged or cut off'),
    'a quote in the header': (_replaced(20, b'"'), 'is no .npy file, damaged or cut off'),
    'brackets in the header': (_replaced(60, b'((('), 'is no .npy file, damaged or cut off'),
}
CAPTIONS = {
    'missing': (None, 'cannot be read .No such file or directory.: add the file, or make it readable'),
    'empty': (lambda data: b'', 'caps.txt is empty'),
    'a blank line': (lambda data: data.replace(b'\n', b'\n \n', 1), 'line 2 is blank'),
    'Latin-1': (lambda data: data.replace(b'runs', b'r\xe9ns', 1), 'line 1 is not UTF-8: convert the file to UTF-8'),
    'UTF-16': (lambda data: data.decode().encode('utf-16'), 'caps.txt, line 1 is not UTF-8'),
    'one line less': (
        lambda data: data[: data.rstrip().rfind(b'\n')],
        'has 8 images for 39 captions',
    ),
    'one line more': (lambda data: data + b'a dog\n', 'has 8 images for 41 captions'),
    'zeros': (lambda data: bytes(len(data)), 'has 8 images for 1 captions'),
}
IDS = {
    'empty': (lambda data: b'', 'ids.txt is empty: it needs one entry per line'),
    'one line less': (
        lambda data: data[: data.rstrip().rfind(b'\n')],
        'ids.txt has 7 ids: it needs one per image .8. or one',
    ),
    'one line more': (lambda data: data + b'x\n', 'ids.txt has 9 ids: it needs one per image .8. or one'),
    'not UTF-8': (lambda data: b'\xff' + data, 'not UTF-8'),
}
COUNTS = 'it needs the number of valid regions of each image'
BOXES = 'boxes must be x1 y1 x2 y2 as fractions'
BESIDE = {  # other files of the split: an array, or text
    'counts.npy: few': (np.ones(7, int), rf'has shape \(7,\): {COUNTS}, shape \(8,\)'),
    'counts.npy: of floats': (np.ones(8), 'has dtype float64: convert it to int32 or int64'),
    'counts.npy: a zero': (np.arange(8) % 2, rf'has numbers from 0 to 1: {COUNTS}, 1 to 3'),
    'counts.npy: too many': (np.full(8, 4), rf'has numbers from 4 to 4: {COUNTS}, 1 to 3'),
    'image_of_text.npy: few': (
        np.zeros(39, int),
        r'has shape \(39,\): it needs the image of each caption, shape \(40,\)',
    ),
    'image_of_text.npy: too large': (np.full(40, 8), 'numbers from 8 to 8: it needs the image of each caption, 0 to 7'),
    'image_of_text.npy: none': (np.arange(40) % 7, 'gives image 7 no caption: every image needs one'),
    'boxes.npy: few': (np.zeros((3, 4)), r'has shape \(3, 4\), but these features need boxes of shape \(8, 3, 4\)'),
    'boxes.npy: below 0': (np.full((8, 3, 4), -0.1), BOXES),
    'boxes.npy: above 1': (np.full((8, 3, 4), 1.1), BOXES),
    'boxes.npy: NaN': (np.full((8, 3, 4), np.nan), BOXES),
    'boxes.npy: no width': (np.tile([0.5, 0, 0.4, 1], (8, 3, 1)), BOXES),
    'boxes.npy: no height': (np.tile([0, 0.5, 1, 0.4], (8, 3, 1)), BOXES),
    'tags.jsonl: few': ('[]\n' * 7, r'has 7 lines: it needs one per row of the features \(8\)'),
    'tags.jsonl: nested too deeply': ('[]\n' * 7 + '[' * 10**5, 'line 8 is not a list of tags'),
} | {
    f'tags.jsonl: {line}': ('[]\n' + f'{line}\n' * 7, 'line 2 is not a list of tags with their scores')
    for line in ('{"dog": 0.9}', '["dog"]', '[["dog", "high"]]', 'dog', '7', '[["dog", 0.9], 1]')
}


def _write_beside(name: str, content: np.ndarray | str) -> Callable[[Path], object]:
    """Returns a function that writes another file of the split for training."""
    if isinstance(content, str):
        return lambda folder: (folder / 'data' / f'train_{name}').write_text(content)
    array = content.astype(np.float32) if name == 'boxes.npy' else content
    return lambda folder: np.save(folder / 'data' / f'train_{name}', array)


def _write_pairs(line: str) -> Callable[[Path], None]:
    """Returns a function that writes ids and captions in one file."""

    def spoil(folder: Path) -> None:
        (folder / 'data' / 'train_caps.txt').unlink()
        lines = ['1\ta dog', '2\ta cat', line, *(f'{n}\ta bus' for n in range(3, 8))]
        (folder / 'data' / 'train_caps.tsv').write_text('\n'.join(lines) + '\n')

    return spoil


def edit(name: str, change: Callable[[bytes], bytes] | None) -> Callable[[Path], None]:
    """Returns a function that changes the bytes of a file, or removes it."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))

    return spoil


def make_pipe(name: str) -> Callable[[Path], None]:
    """Returns a function that puts a pipe in place of a file, from which reading never ends."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def _make_folder(folder: Path) -> None:
    (folder / 'data' / 'train_ims.npy').unlink()
    (folder / 'data' / 'train_ims.npy').mkdir()


PIPES = 'ims.npy', 'caps.txt', 'ids.txt', 'counts.npy', 'image_of_text.npy', 'boxes.npy', 'tags.jsonl'


def data_rows() -> Iterator[Row]:
    """Yields damaged files of a data set."""
    for name, (change, sentence) in ARRAYS.items():
        for split in ('train', 'dev'):
            yield Row(f'{split} features: {name}', NEW, _array(change, split), sentence)
    for suffix, kinds in (('ims.npy', BYTES), ('caps.txt', CAPTIONS), ('ids.txt', IDS)):
        for split in ('train', 'dev'):
            for name, (change, sentence) in kinds.items():
                file = f'data/{split}_{suffix}'
                yield Row(f'{file}: {name}', NEW, edit(file, change), sentence)
                if split == 'dev' and change is not None:
                    yield Row(f'{file}: {name}, evaluated', runs.EVALUATE, edit(file, change), sentence)
    for suffix in PIPES:
        yield Row(f'data/train_{suffix}: a pipe', NEW, make_pipe(f'data/train_{suffix}'), 'it is not a regular file')
    for name, (content, sentence) in BESIDE.items():
        yield Row(f'data/train_{name}', NEW, _write_beside(name.partition(':')[0], content), sentence)
    for line, sentence in runs.VALUES['ids and captions'].items():
        yield Row(f'data/train_caps.tsv: {line!r}', NEW, _write_pairs(line), sentence)
    yield Row('data/train_ims.npy: a folder', NEW, _make_folder, r'cannot be read \(Is a directory\)')


VOCABULARIES = 'x.json', 'x.txt', 'x.pkl', 'merges.txt', 'tokenizer.json', 'x.txt.gz'


def untrusted_rows() -> Iterator[Row]:
    """Yields files from which reading would never end."""
    convert = 'convert', '--from', 'vsepp', '--out', 'converted', 'x.pth'
    yield Row('a file of torch is a pipe', convert, make_pipe('x.pth'), 'x.pth')
    for name in VOCABULARIES:
        argv = *NEW, f'--config.vocabulary.path={name}'
        yield Row(f'{name} is a pipe', argv, make_pipe(name), 'it is not a regular file')


def other_data_rows() -> Iterator[Row]:
    """Yields data of which one number is not as in the run that resumes."""
    for split, key in (('train', 'data.content'), ('dev', 'data.validation.content')):
        yield Row(f'{split} features: another number', runs.TRAIN, _array(_put(0.5), split), f'other data .*{key}')


def foreign_rows() -> Iterator[Row]:
    """Yields commands that would write where files of somebody else are; `check` sees that none changes."""
    for name, argv in foreign.FOLDERS.items():
        sentence = 'is not empty and is not an? .* of jitm|exists and is not a run of jitm|config.json is damaged'
        yield Row(f'{name}: a folder of somebody else', argv, foreign.write, sentence)
    for name, argv in foreign.FILES.items():
        sentence = 'was not written by jitm|is not a row of jitm'
        yield Row(f'{name}: a file of somebody else', argv, foreign.write, sentence)
    for name, argv in foreign.READ.items():
        yield Row(f'{name}: something of somebody else', argv, foreign.write, '.')


COMMANDS = {  # a correct command of each
    'train': NEW,
    'eval': runs.EVALUATE,
    'mine': runs.MINE,
    'sweep': ('sweep', '--config', 'config.py', '--workdir', 'swept', '--sweep', 'terms.ranking.margin=0.1,0.2'),
    'words': ('words', '--workdir', 'run', '--perturbations', 'noun'),
    'report': ('report', 'summary', 'run'),
}


def flag_rows() -> Iterator[Row]:
    """Yields wrong flags of each command."""
    for name, argv in COMMANDS.items():
        yield Row(f'{name} --unknown', (*argv, '--unknown=1'), None, 'unknown|Unknown')
        usage = cli.load_usage(name)
        flags = cli.define_flags(usage)
        for required in getattr(usage, 'REQUIRED', ()):
            at = argv.index(f'--{required}')
            yield Row(f'{name} without --{required}', argv[:at] + argv[at + 2 :], None, required)
            empty = *argv[:at], f'--{required}=', *argv[at + 2 :]
            yield Row(f'{name} --{required} is empty', empty, None, f'--{required} is missing')
        for flag in flags:
            kind = flags[flag].flag_type()
            wrong = {'int': ('x', '1.5', ''), 'bool': ('maybe', '2')}.get(kind, ())
            wrong = ('x',) if getattr(flags[flag].parser, 'enum_values', None) else wrong
            bound = getattr(flags[flag].parser, 'lower_bound', None)
            for value in wrong + (() if bound is None else (str(bound - 1),)):
                yield Row(f'{name} --{flag}={value}', (*argv, f'--{flag}={value}'), None, flag)
        if not hasattr(usage, 'ARGUMENTS'):
            yield Row(f'{name} with a word', (*argv, 'word'), None, "'word' is not a flag")


DAMAGES = {
    'missing': None,
    'empty': lambda data: b'',
    'cut off': lambda data: data[:-1],
    'flipped': lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}
RUN_FILES = {
    'config.json': {
        'empty': (lambda data: b'', 'damaged'),
        'cut off': (lambda data: data[:50], 'damaged'),
        'a list': (lambda data: b'[1]', 'config.json is damaged; restore it, or choose a new workdir'),
        'deep': (lambda data: b'[' * 10**5, 'damaged|not a run directory'),
        'a number': (lambda data: b'1', 'config.json is damaged; restore it, or choose a new workdir'),
        'null': (lambda data: b'null', 'config.json is damaged'),
        'binary': (lambda data: b'\xff\xfe', 'config.json is damaged'),
        'another': (lambda data: data.replace(b'"seed": 0', b'"seed": 7'), 'another config'),
        'no terms': (lambda data: data.replace(b'"terms"', b'"trems"'), r'another config \(terms'),
    },
    'metrics.jsonl': {
        'binary': (lambda data: b'\xff\xfe\n' + data, 'damaged in line 1'),
        'a list': (lambda data: b'[1]\n' + data, 'damaged in line 1'),
        'cut within': (lambda data: data.replace(b'}', b'', 1), 'damaged in line 1'),
        'no step': (lambda data: data.replace(b'"step"', b'"stop"'), 'damaged in line 1'),
        'no object': (lambda data: b'1\n' + data, 'damaged in line 1'),
    },
}


def _remove_checkpoints(folder: Path) -> None:
    for path in (folder / 'run' / 'checkpoints').iterdir():
        shutil.rmtree(path)


def run_rows(base: Path) -> Iterator[Row]:
    """Yields damaged files of a run directory: those of its last checkpoint and its best one."""
    for name, kinds in RUN_FILES.items():
        for kind, (change, sentence) in kinds.items():
            yield Row(f'{name}: {kind}', runs.TRAIN, edit(f'run/{name}', change), sentence)
            if name == 'metrics.jsonl':
                summary = 'report', 'summary', 'run'
                yield Row(f'{name}: {kind}, reported', summary, edit(f'run/{name}', change), sentence)
    another = edit('run/config.json', RUN_FILES['config.json']['another'][0])
    sentence = r'not as in its checkpoints \(seed: \d -> \d\); restore'
    yield Row('config.json: another, reported', ('report', 'summary', 'run'), another, sentence)
    yield Row('a run without checkpoints', runs.EVALUATE, _remove_checkpoints, 'run has no validated checkpoint yet')
    checkpoints = Checkpoints(base / 'run')
    read = {f'run/checkpoints/{step}/' for step in (checkpoints.best_step(), checkpoints.steps()[-1])}
    for name, data in sorted(runs.contents(base).items()):
        if not data or not name.startswith(tuple(read)):
            continue
        for kind, change in DAMAGES.items():
            yield Row(f'{name}: {kind}', runs.EVALUATE, edit(name, change), 'damaged|missing|saved now')


FIRST, SECOND = jobs.process(NEW, 0, 2), jobs.process(NEW, 1, 2)
JOBS = {
    'another config': ((FIRST, (*SECOND, '--config.seed=3')), "'seed' is 0 in process 0 and 3 in process 1"),
    'other data': (
        (FIRST, (*SECOND, '--config.data.root=other')),
        "'data.content' is .* in process 0 and .* in process 1",
    ),
    'another number of processes': (
        (FIRST, jobs.process(NEW, 1, 3)),
        "'num_processes' is 2 in process 0 and 3 in process 1",
    ),
}


def _write_other_data(folder: Path) -> None:
    shutil.copytree(folder / 'data', folder / 'other')
    _array(_put(0.5), 'train')(folder)


def job_rows() -> Iterator[Row]:
    """Yields processes that cannot be those of one job."""
    for name, (commands, sentence) in JOBS.items():
        yield Row(f'a job: {name}', (), _write_other_data, sentence, commands)


def sections(base: Path) -> dict[str, list[Row]]:
    """Returns the table by what is wrong."""
    return {
        'config keys': [*config_rows(), *range_rows(), *value_rows()],
        'modules of the user': [*own_rows()],
        'config files': [*config_file_rows()],
        'data': [*data_rows(), *other_data_rows()],
        'untrusted files': [*untrusted_rows()],
        'files of somebody else': [*foreign_rows()],
        'flags and arguments': [
            *flag_rows(),
            *(Row(line, (*shlex.split(line),), None, sentence) for line, sentence in runs.LISTED['commands'].items()),
        ],
        'runs': [*run_rows(base)],
        'several processes': [*job_rows()],
    }


def rows(base: Path) -> list[Row]:
    """Returns the whole table."""
    return [*itertools.chain(*sections(base).values())]


def random_row(rng: random.Random, base: Path) -> Row:
    """Returns a row with features that are cut off at a random place; other damage of data is not always noticed."""
    name = rng.choice(sorted(name for name in runs.contents(base) if re.fullmatch(r'data/(train|dev)_ims\.npy', name)))
    keep = rng.randrange((base / name).stat().st_size)
    return Row(f'{name} is cut after {keep} bytes', NEW, edit(name, lambda data: data[:keep]), Path(name).name)
