"""Wrong inputs: each ends with exit code 2 and one line on stderr, and changes no file."""

import json
import math
import os
import pickle
import random
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.commands import cli
from jitm.errors import EXIT_USER_ERROR
from jitm.files import LOCK, hash_file
from jitm.runs.checkpoint import Checkpoints
from tools.drills import foreign, jobs, kills, runs


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


def check(row: Row, base: Path, folder: Path) -> str | None:
    """Tries an input in a copy of a folder.

    Args:
      row: the input.
      base: the folder of `runs.write_base`.
      folder: where the copy is made.

    Returns:
      What is wrong about how the command ended; None if nothing is.
    """
    with runs.copy_of(base, folder):
        if row.spoil:
            row.spoil(folder)
        before = runs.contents(folder)
        for code, output, error, warnings in jobs.call(row.job, folder) if row.job else [runs.call(row.argv)]:
            if (code, output, warnings) != (EXIT_USER_ERROR, '', ()) or not re.fullmatch(r'error: .+\n', error):
                return f'exit code {code}, output {output[:200]!r}, warnings {warnings}, error {error[-600:]!r}'
            if not re.search(row.sentence, error):
                return f'the message lacks {row.sentence!r}: {error}'
        changed = {name for name, _ in before.items() ^ runs.contents(folder).items() if Path(name).name != LOCK}
        return f'{sorted(changed)} changed' if changed else None


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
    return lambda folder: runs.write_config(folder / 'config.py', config)


def config_rows() -> Iterator[Row]:
    """Yields each key with values of other kinds, without it, and misspelled."""
    config = runs.make_config()
    for key in runs.keys_of(config):
        for kind, value in WRONG_VALUES.items():
            yield Row(f'{key} is {kind}', NEW, _configured(runs.changed(config, key, value)))
        if key not in OPTIONAL:
            yield Row(f'{key} is missing', NEW, _configured(runs.without(config, key)))
        misspelled = '--config.' + key[:-1] + '=1'
        yield Row(f'{key} is misspelled', (*NEW, misspelled), None, r"config key '.*' is unknown")


RANGES = {
    'seed': (-1,),
    'epochs': (0, -1),
    'batch_size': (0, -1, 1000),
    'length_multiple': (0, -1),
    'vocabulary.min_count': (-1, 10**6),
    'augmentation.drop_regions': (-0.1, 1.0, math.nan),
    'augmentation.change_words': (-0.1, 1.0, math.nan),
    'augmentation.num_views': (0, -1),
    'model.embed_dim': (0, -1),
    'model.text.word_dim': (0, -1),
    'model.text.dropout': (-0.1, 1.0, math.nan),
    'terms.ranking.margin': (-1.0, math.nan),
    'terms.ranking.weight': (math.nan,),
    'terms.later.start_epoch': (-1,),
    'optimizer.learning_rate': (-1.0, 0.0, math.nan),
    'optimizer.weight_decay': (-1.0, math.nan),
    'optimizer.decay_epochs': (0, -1),
    'optimizer.clip_norm': (0.0, -1.0, math.nan),
    'evaluation.every_steps': (0, -1),
    'run.log_every': (0, -1),
    'run.checkpoint_every': (0, -1),
    'run.prefetch': (0, -1),
    'run.memory_mb': (0, -1),
    'masking.rate': (3.0,),
}


def range_rows() -> Iterator[Row]:
    """Yields each number with values out of its range."""
    config = runs.make_config()
    for key, values in RANGES.items():
        for value in values:
            yield Row(f'{key} is {value}', NEW, _configured(runs.changed(config, key, value)))


def ignored_rows() -> Iterator[Row]:
    """Yields keys that nothing would read, since another one replaces them."""
    config = kills.two_stages()
    for key, value in {
        'offline.path': 'absent',
        'stages.first.seed': 77,
        'stages.first.data': config['data'],
        'stages.first.run': config['run'],
    }.items():
        yield Row(f'{key} with two stages', NEW, _configured(runs.changed(config, key, value)), key)
    tuned = runs.changed(kills.two_stages(), 'stages.fine_tune', True) | {'terms': runs.make_config()['terms']}
    tuned['stages'] |= {'top_h_texts': 0, 'top_h_images': 0}
    for key in ('members.target.init_from', 'initialize.word_vectors'):
        yield Row(f'{key} with fine-tuning', NEW, _configured(runs.changed(tuned, key, 'absent')), key)
    for given in (
        ('vocabulary.min_count=1', 'vocabulary.path=config.py'),
        ('model.image.norm_padding=True',),
        ('scene_graphs.source=scene_graphs.rules',),
        ('initialize.word_vectors=absent', 'members.target.init_from=run'),
    ):
        flags = [f'--config.{assignment}' for assignment in given]
        yield Row(' '.join(flags), (*NEW, *flags), None, given[0].partition('=')[0])


OWN = """
import jax.numpy as jnp


def hinge(scores, positives, negatives, *, margin, gamma=2.0):
    return jnp.sum(jnp.maximum(scores, 0), axis=1) ** gamma


def wrong(scores, positives, negatives, *, margin):
    return scores.maximum(0)


def other(x, y):
    return x


class Model:
    pass
"""
OWN_FLAGS = {
    'no file': (('terms.ranking.loss=own_file.hinge',), 'no own_file in'),
    'no path': (('terms.ranking.loss=more/own.py:hinge',), 'there is no file more/own.py'),
    'no function': (('terms.ranking.loss=own.hing',), "own has no 'hing', did you mean 'hinge'"),
    'another argument': (
        ('terms.ranking.loss=own.hinge', 'terms.ranking.gama=3'),
        "did you mean 'terms.ranking.gamma'",
    ),
    'a word': (('terms.ranking.loss=own.hinge', 'terms.ranking.gamma=three'), 'gamma'),
    'a mistake': (('terms.ranking.loss=own.wrong',), r'line 10 of .*own.py: return scores.maximum\(0\)'),
    'other arguments': (('terms.ranking.loss=own.other',), 'it must have scores, positives and negatives first'),
    'no module of Flax': (('model.name=own.Model',), 'a model a class of flax.linen.Module'),
    'a function as model': (('model.name=own.hinge',), 'a model a class of flax.linen.Module'),
    'a module that fails': (('terms.ranking.loss=broken.loss',), 'SyntaxError in line 1 of .*broken.py'),
}


def _write_own(folder: Path) -> None:
    (folder / 'own.py').write_text(OWN)
    (folder / 'broken.py').write_text('def loss(:')
    for name in ('own', 'broken', 'own_file'):
        sys.modules.pop(name, None)  # of an earlier copy of the folder


def own_rows() -> Iterator[Row]:
    """Yields losses and models of the user's own modules that are wrong."""
    for name, (assignments, sentence) in OWN_FLAGS.items():
        flags = [f'--config.{assignment}' for assignment in assignments]
        yield Row(f'own: {name}', (*NEW, *flags), _write_own, sentence)


CONFIG_TEXTS = {
    'empty': ('', 'has no get_config'),
    'no Python': ('def get_config(:', 'SyntaxError'),
    'bytes': ('\0\1', 'cannot be run'),
    'an unknown import': ('import no_such_module', 'no_such_module'),
    'raises': ('def get_config():\n    return 1 / 0', 'ZeroDivisionError|division'),
    'returns None': ('def get_config():\n    return None', ''),
    'returns a list': ('def get_config():\n    return [1]', ''),
    'returns a dict': ('def get_config():\n    return {}', ''),
}


def config_file_rows() -> Iterator[Row]:
    """Yields config files that are none."""
    for name, (text, sentence) in CONFIG_TEXTS.items():
        yield Row(f'config file: {name}', NEW, lambda folder, t=text: (folder / 'config.py').write_text(t), sentence)
    for name, value in {'absent.py': 'absent.py', 'a folder': 'data', 'empty': '', 'words': 'config.py:word'}.items():
        yield Row(f'--config: {name}', ('train', '--config', value, '--workdir', 'new'))
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


ARRAYS = {
    'NaN': (_put(np.nan), 'row 5 has NaN'),
    'infinite': (_put(np.inf), 'row 5'),
    'float64': (lambda x: x.astype(np.float64), 'dtype float64'),
    'integers': (lambda x: x.astype(np.int32), 'dtype int32'),
    'complex': (lambda x: x.astype(np.complex64), 'dtype complex64'),
    'objects': (lambda x: np.array([{'a': 1}] * 8, object), 'dtype object'),
    'text': (lambda x: np.array(['a'] * 8), 'dtype'),
    'no image': (lambda x: x[:0], 'empty'),
    'no region': (lambda x: x[:, :0], 'empty'),
    'a scalar': (lambda x: x[0, 0, 0], ''),
    'four dimensions': (lambda x: x[None], ''),
    'seven images': (lambda x: x[:7], 'captions for the 7 images'),
    'other size': (lambda x: x[:, :, :5], 'features per region'),
}
BYTES = {
    'missing': (None, 'cannot be read|has no'),
    'empty': (lambda data: b'', ''),
    'one byte': (lambda data: data[:1], ''),
    'cut off': (lambda data: data[: len(data) // 2], ''),
    'zeros': (lambda data: bytes(len(data)), ''),
    'a picture': (lambda data: b'\xff\xd8\xff\xe0\0\x10JFIF' + bytes(100), 'is no .npy file'),
}
CAPTIONS = {
    'missing': (None, 'cannot be read .*: add the file, or make it readable'),
    'empty': (lambda data: b'', 'is empty'),
    'a blank line': (lambda data: data.replace(b'\n', b'\n\n', 1), 'line 2 is blank'),
    'Latin-1': (lambda data: data.replace(b'runs', b'r\xe9ns', 1), 'line 1 is not UTF-8'),
    'UTF-16': (lambda data: data.decode().encode('utf-16'), ''),
    'one line less': (lambda data: data[: data.rstrip().rfind(b'\n')], 'captions for the'),
    'one line more': (lambda data: data + b'a dog\n', 'captions for the'),
    'zeros': (lambda data: bytes(len(data)), ''),
}
IDS = {
    'empty': (lambda data: b'', ''),
    'one line less': (lambda data: data[: data.rstrip().rfind(b'\n')], ''),
    'one line more': (lambda data: data + b'x\n', ''),
    'not UTF-8': (lambda data: b'\xff' + data, 'not UTF-8'),
}


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
    deep = 'data/dev_tags.jsonl', '[]\n' * 7 + '[' * 10**5
    yield Row('tags nested too deeply', NEW, lambda folder: (folder / deep[0]).write_text(deep[1]), 'line 8 is not')


def _nested(depth: int) -> list:
    """Returns a small list that would be endless if the parts that it repeats were written out."""
    node: list = []
    for _ in range(depth):
        node = [node, node]
    return node


def _torch(content: bytes, compression: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    """Returns a function that writes a file of torch with a pickle."""

    def spoil(folder: Path) -> None:
        with zipfile.ZipFile(folder / 'x.pth', 'w', compression) as archive:
            archive.writestr('x/data.pkl', content)

    return spoil


def _float8(folder: Path) -> None:
    header = json.dumps({'fc.weight': {'dtype': 'F8_E4M3', 'shape': [4], 'data_offsets': [0, 4]}}).encode()
    (folder / 'x.safetensors').write_bytes(struct.pack('<Q', len(header)) + header + bytes(4))


def _exported(name: str, text: str) -> Callable[[Path], None]:
    """Returns a function that exports the run and replaces a file of the folder, with its checksum."""

    def spoil(folder: Path) -> None:
        assert runs.call(('convert', '--to', 'safetensors', 'run', '--out', 'exported')).code == 0
        path, config = folder / 'exported' / name, folder / 'exported' / 'config.json'
        path.write_text(text)
        if path != config:
            described = json.loads(config.read_text())
            described['sha256'][name] = hash_file(path)
            config.write_text(json.dumps(described))

    return spoil


TORCH = {
    'lists twice in lists': (_torch(pickle.dumps(_nested(60), protocol=2)), 'repeats its content too often'),
    'nested too deeply': (_torch(b']' * 10**5 + b'a' * (10**5 - 1) + b'.'), 'RecursionError'),
    'compressed': (_torch(bytes(10**6), zipfile.ZIP_DEFLATED), 'data.pkl is compressed'),
    'a pipe': (lambda folder: os.mkfifo(folder / 'x.pth'), 'x.pth'),
}
EXPORTED = {
    'a vocabulary nested too deeply': (_exported('vocabulary.json', '[' * 10**5), 'exported is damaged'),
    'a vocabulary of numbers': (_exported('vocabulary.json', '{"kind": "words", "words": [1]}'), 'is damaged'),
    'a config nested too deeply': (_exported('config.json', '[' * 10**5), 'exported is damaged'),
}
VOCABULARIES = 'x.json', 'x.txt', 'x.pkl', 'merges.txt', 'tokenizer.json', 'x.txt.gz'


def untrusted_rows() -> Iterator[Row]:
    """Yields weights, vocabularies and exported models that would take much time or memory, or never end."""
    convert = 'convert', '--from', 'vsepp', '--out', 'converted'
    for name, (spoil, sentence) in TORCH.items():
        yield Row(f'a file of torch: {name}', (*convert, 'x.pth'), spoil, sentence)
    yield Row('safetensors in 8 bits', (*convert, 'x.safetensors'), _float8, '')
    for name, (spoil, sentence) in EXPORTED.items():
        yield Row(f'an exported model: {name}', ('eval', '--workdir', 'exported'), spoil, sentence)
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


SIMS = 'report', 'distributions', 'evaluated/sims.npy'
REPORTS = {  # metrics.json beside similarities
    'of other similarities': (
        '{"protocol": {"data": "", "split": "", "runs": []}, "identity": {"captions": ""}, "files": {"sims.npy": ""}}',
        'sims.npy is not of the evaluation in metrics.json beside it',
    ),
    'a list': ('[]', 'is not a report of jitm eval'),
    'nested too deeply': ('[' * 10**5, 'is not a report of jitm eval'),
    'of another version': ('{"protocol": {"data": "", "split": "", "runs": []}}', 'is not a report of jitm eval'),
}


def _saved(report: str | None) -> Callable[[Path], None]:
    """Returns a function that writes similarities; with a report also the image of each text."""

    def spoil(folder: Path) -> None:
        (folder / 'evaluated').mkdir()
        np.save(folder / 'evaluated' / 'sims.npy', np.eye(2, dtype=np.float32))
        if report is not None:
            np.save(folder / 'evaluated' / 'image_of_text.npy', np.arange(2))
            (folder / 'evaluated' / 'metrics.json').write_text(report)

    return spoil


def saved_rows() -> Iterator[Row]:
    """Yields similarities that are not known to be of the report beside them."""
    yield Row('similarities without images', SIMS, _saved(None), r'needs image_of_text\.npy beside it')
    for name, (report, sentence) in REPORTS.items():
        yield Row(f'the report beside similarities: {name}', SIMS, _saved(report), sentence)


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
        command = cli.load_command(name)
        flags = cli._define_flags(command)
        for required in getattr(command, 'REQUIRED', ()):
            at = argv.index(f'--{required}')
            yield Row(f'{name} without --{required}', argv[:at] + argv[at + 2 :], None, required)
            yield Row(f'{name} --{required} is empty', (*argv[:at], f'--{required}=', *argv[at + 2 :]))
        for flag in flags:
            kind = flags[flag].flag_type()
            wrong = {'int': ('x', '1.5', ''), 'bool': ('maybe', '2')}.get(kind, ())
            wrong = ('x',) if getattr(flags[flag].parser, 'enum_values', None) else wrong
            bound = getattr(flags[flag].parser, 'lower_bound', None)
            for value in wrong + (() if bound is None else (str(bound - 1),)):
                yield Row(f'{name} --{flag}={value}', (*argv, f'--{flag}={value}'), None, flag)
        if not hasattr(command, 'ARGUMENTS'):
            yield Row(f'{name} with a word', (*argv, 'word'), None, "'word' is not a flag")


SEARCH = 'search', '--workdir', 'run', '--split', 'dev', 'a dog'
ARGUMENTS = [
    (('trian',), "did you mean 'train'"),
    (('settings', 'no_such_word'), 'jitm settings lists the words'),
    (('settings', '--show', 'vze'), "did you mean 'vse'"),
    (('settings', '--show', 'vse:fc,fc'), ''),
    (('settings', '--show', 'vse', 'fc'), "leave out 'fc'"),
    (('train', '--config', 'vze:fc', '--workdir', 'new'), "did you mean 'vse'"),
    (('train', '--config', 'configs/absent.py', '--workdir', 'new'), 'does not exist'),
    ((*NEW[:-1], 'config.py'), 'config.py'),
    ((*NEW[:-1], 'data'), 'is not a run of jitm'),
    ((*NEW[:-1], '/dev/null/run'), '/dev/null'),
    ((*runs.TRAIN, '--config.seed=1'), 'another config'),
    ((*runs.TRAIN, '--config.optimizer.learning_rate=1'), 'another config'),
    ((*NEW, '--num_processes=2'), 'go together'),
    ((*NEW, '--coordinator=nonsense', '--num_processes=2', '--process_id=0'), ''),
    ((*NEW, '--coordinator=localhost:1', '--num_processes=0', '--process_id=0'), ''),
    ((*NEW, '--coordinator=localhost:1', '--num_processes=2', '--process_id=5'), ''),
    (('eval', '--workdir', 'absent'), 'absent'),
    (('eval', '--workdir', 'data'), 'not a run directory'),
    (('eval', '--workdir', 'config.py'), 'not a run directory'),
    ((*runs.EVALUATE, '--step=3'), 'checkpoint .* is missing'),
    ((*runs.EVALUATE, '--step=-1'), ''),
    ((*runs.EVALUATE, '--member=x'), "has no member 'x'"),
    ((*runs.EVALUATE, '--split=tset'), "no split 'tset'"),
    ((*runs.EVALUATE, '--split=../dev'), ''),
    ((*runs.EVALUATE, '--data_root=absent'), 'absent'),
    ((*runs.EVALUATE, '--folds=3'), 'fold'),
    ((*runs.EVALUATE, '--top_m=10'), 'go together'),
    ((*runs.EVALUATE, '--shortlist=run'), 'go together'),
    ((*runs.EVALUATE, '--shortlist=absent', '--top_m=10'), 'absent'),
    ((*runs.EVALUATE, '--explain=1'), ''),
    (('eval', '--workdir', 'run', '--output', 'config.py'), 'config.py'),
    (('eval', '--workdir', 'run', '--output', '/dev/null/x'), '/dev/null'),
    (('eval', '--workdir', 'run', '--output', 'data'), 'data is not empty and is not an evaluation of jitm'),
    ((*COMMANDS['words'], '--output', 'data'), 'data is not empty and is not an evaluation of jitm'),
    (('report', 'run', '--output', 'config.py'), 'config.py exists and was not written by jitm'),
    (('report', 'panels', 'data/dev_ims.npy', '--output', 'config.py'), 'config.py exists and was not written by jitm'),
    (('report', 'training', 'run', '--output', 'config.py'), 'has the suffix .py; give --output one of png, '),
    (('mine', '--workdir', 'absent', '--out', 'mined'), 'absent'),
    ((*runs.MINE, '--top_h_texts=99'), '1 to 35 negatives'),
    ((*runs.MINE, '--top_h_images=8'), '1 to 7 negatives'),
    ((*runs.MINE, '--split=tset'), "no split 'tset'"),
    ((*runs.MINE, '--out=config.py'), 'config.py'),
    ((*runs.MINE, '--out=data'), 'data is not empty and is not a set of mined negatives of jitm'),
    ((*SEARCH, '--index=data'), 'data is not empty and is not an index of jitm'),
    ((*SEARCH, '--html=config.py'), 'config.py exists and was not written by jitm'),
    ((*SEARCH, '--export=config.py'), 'config.py exists and was not written by jitm'),
    (('convert', '--to=safetensors', 'run', '--out=data'), 'data is not empty and is not an exported model of jitm'),
    (('convert', '--from=scan', 'run', '--out=data'), 'data is not empty and is not a converted run of jitm'),
    ((*COMMANDS['sweep'], '--sweep=seed'), 'give key=value'),
    ((*COMMANDS['sweep'], '--sweep=terms.ranking.margin=1'), 'must differ'),
    ((*COMMANDS['sweep'], '--sweep=sed=1'), "'sed' is unknown"),
    ((*COMMANDS['sweep'], '--sweep=model=1'), 'sub-dict'),
    ((*COMMANDS['sweep'], '--seeds=x'), ''),
    ((*COMMANDS['sweep'], '--sweep=epochs=0'), 'epochs'),
    ((*COMMANDS['sweep'], '--workdir=run'), 'is a run directory'),
    (('words', '--workdir', 'run', '--perturbations', 'nuon'), "'nuon'"),
    (('words', '--workdir', 'run', '--perturbations', 'noun', '--perplexity'), ''),
    (('words', '--workdir', 'absent', '--perturbations', 'noun'), 'absent'),
    ((*runs.EVALUATE, '--import=absent'), 'there is no module absent in'),
    ((*runs.EVALUATE, '--import=absent.py'), 'there is no file absent.py'),
    ((*runs.EVALUATE, '--import=config_text.txt'), 'there is no module config_text'),
    ((*runs.SEARCH, '--top_m=7'), 'not read without --rerank'),
    ((*runs.SEARCH, '--photos=data'), 'not read without --html'),
    ((*runs.SEARCH, '--html=a.html', '--photos=absent'), 'absent is not a folder'),
    ((*runs.SEARCH, '--find=captions'), 'needs --image'),
    (('search', '--workdir', 'run', '--images', 'data/dev_ims.npy', '--data_root=data', 'a dog'), 'without --split'),
    (('encode', '--config', 'config.py', '--out', 'new', '--step=3'), 'not read without --workdir'),
    (('words', '--workdir', 'run', '--perturbations', 'swap', '--min_count=3'), "without the perturbation 'noun'"),
    (
        ('words', '--workdir', 'run', '--perturbations', 'noun,in_batch', '--save_perturbed'),
        'leave in_batch out of --perturbations',
    ),
    (('report', 'run', '--photos=absent'), 'absent is not a folder'),
    (('report', 'sumary', 'run'), ''),
    (('report', 'summary'), ''),
    (('report', 'summary', 'absent'), 'absent'),
    (('report', 'summary', 'data'), 'data'),
    (('report', 'panels', 'config.py'), 'config.py'),
    (('report', 'map', 'data/train_ims.npy'), ''),
    (('report', 'distributions', 'data/train_caps.txt'), 'train_caps.txt'),
]

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
        'a list': (lambda data: b'[1]', ''),
        'deep': (lambda data: b'[' * 10**5, 'damaged|not a run directory'),
        'a number': (lambda data: b'1', ''),
        'null': (lambda data: b'null', ''),
        'binary': (lambda data: b'\xff\xfe', ''),
        'another': (lambda data: data.replace(b'"seed": 0', b'"seed": 7'), 'another config'),
        'no terms': (lambda data: data.replace(b'"terms"', b'"trems"'), ''),
    },
    'metrics.jsonl': {
        'binary': (lambda data: b'\xff\xfe\n' + data, 'damaged in line 1'),
        'a list': (lambda data: b'[1]\n' + data, 'damaged in line 1'),
        'cut within': (lambda data: data.replace(b'}', b'', 1), 'damaged in line 1'),
        'no step': (lambda data: data.replace(b'"step"', b'"stop"'), 'damaged in line 1'),
        'no object': (lambda data: b'1\n' + data, 'damaged in line 1'),
        'another number': (lambda data: data.replace(b'"step": 0', b'"step": 2', 1), 'damaged in line 1'),
    },
}


def run_rows(base: Path) -> Iterator[Row]:
    """Yields damaged files of a run directory: those of its last checkpoint and its best one."""
    for name, kinds in RUN_FILES.items():
        for kind, (change, sentence) in kinds.items():
            yield Row(f'{name}: {kind}', runs.TRAIN, edit(f'run/{name}', change), sentence)
            if name == 'metrics.jsonl':
                summary = 'report', 'summary', 'run'
                yield Row(f'{name}: {kind}, reported', summary, edit(f'run/{name}', change), sentence)
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
        'config keys': [*config_rows(), *range_rows(), *ignored_rows()],
        'modules of the user': [*own_rows()],
        'config files': [*config_file_rows()],
        'data': [*data_rows(), *other_data_rows()],
        'untrusted files': [*untrusted_rows()],
        'files of somebody else': [*foreign_rows()],
        'saved results': [*saved_rows()],
        'flags and arguments': [
            *flag_rows(),
            *(Row(' '.join(argv), argv, None, sentence) for argv, sentence in ARGUMENTS),
        ],
        'runs': [*run_rows(base)],
        'several processes': [*job_rows()],
    }


def rows(base: Path) -> list[Row]:
    """Returns the whole table."""
    return [row for section in sections(base).values() for row in section]


def random_row(rng: random.Random, base: Path) -> Row:
    """Returns a row with features that are cut off at a random place; other damage of data is not always noticed."""
    name = rng.choice(sorted(name for name in runs.contents(base) if re.fullmatch(r'data/(train|dev)_ims\.npy', name)))
    keep = rng.randrange((base / name).stat().st_size)
    return Row(f'{name} is cut after {keep} bytes', NEW, edit(name, lambda data: data[:keep]), Path(name).name)
