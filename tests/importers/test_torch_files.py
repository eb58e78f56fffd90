import argparse
import collections
import contextlib
import gzip
import pathlib
import pickle
import random
import re
import tarfile
import types
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.importers import containers, torch_files
from tests.support.torch_pickles import (
    LEGACY_HEAD,
    Build,
    Call,
    Global,
    Storage,
    dense,
    modules,
    tensor,
    write_legacy,
    write_zip,
)

WRITERS = pytest.mark.parametrize('write', [write_zip, write_legacy])
MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def read_all(path):
    leaves = containers._leaves(torch_files.load(path))
    return {'.'.join(keys): x.numpy() for keys, x in leaves if isinstance(x, torch_files.Tensor)}


@WRITERS
@pytest.mark.parametrize(
    ('kind', 'dtype'),
    [
        ('DoubleStorage', np.float64),
        ('FloatStorage', np.float32),
        ('HalfStorage', np.float16),
        ('BFloat16Storage', jnp.bfloat16),
        ('LongStorage', np.int64),
        ('IntStorage', np.int32),
        ('ShortStorage', np.int16),
        ('CharStorage', np.int8),
        ('ByteStorage', np.uint8),
        ('BoolStorage', np.bool_),
    ],
)
def test_values_of_every_type(tmp_path, write, kind, dtype):
    values = np.array([[0, 1, 100], [3, 0, 5]]).astype(dtype)
    got = read_all(write(tmp_path / 'x.pth', {'a': dense(values, '0', kind)}))['a']
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, values)


@WRITERS
def test_views_of_one_storage(tmp_path, write):
    storage = Storage('7', np.arange(12, dtype=np.float32))
    tensors = {
        'transposed': tensor(storage, (3, 4), (1, 3)),
        'part': tensor(storage, (2, 2), (4, 1), offset=5),
        'old': tensor(storage, (12,), (1,), function='_rebuild_tensor'),
        'number': tensor(storage, (), (), offset=11),
        'empty': tensor(storage, (0, 3), (3, 1), offset=12),
        'nothing': tensor(Storage('8', np.zeros(0, np.float32)), (0,), (1,)),
    }
    got = read_all(write(tmp_path / 'x.pth', tensors))
    np.testing.assert_array_equal(got['transposed'], np.arange(12).reshape(4, 3).T)
    np.testing.assert_array_equal(got['part'], [[5, 6], [9, 10]])
    np.testing.assert_array_equal(got['old'], np.arange(12))
    assert got['number'] == 11
    assert (got['empty'].shape, got['nothing'].shape) == ((0, 3), (0,))
    assert got['part'].flags.c_contiguous


def test_modules_of_torchscript(tmp_path):
    sizes = Call(Global('torch.jit._pickle', 'build_intlist'), ([2, 3],))
    root = modules({'fc.weight': MATRIX, 'scale': MATRIX[0]})
    root.attributes['sizes'] = sizes
    got = read_all(write_zip(tmp_path / 'clip.pt', root, extra=[('code/x.py', 'raise SystemExit')]))
    assert got.keys() == {'fc.weight', 'scale'}
    np.testing.assert_array_equal(got['fc.weight'], MATRIX)


def write_pickle(path, content):
    """Writes a file of torch with a pickle."""
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('archive/data.pkl', content)
    return path


class Canary:
    """Runs a command when it is unpickled in the usual way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), 'w')


@WRITERS
@pytest.mark.parametrize(
    ('module', 'name'),
    [
        ('os', 'system'),
        ('builtins', 'eval'),
        ('__builtin__', 'getattr'),
        ('subprocess', 'Popen'),
        ('torch', 'load'),
        ('torch._utils', '_rebuild_qtensor'),
        ('collections', 'OrderedDict.fromkeys'),
        ('jitm.importers.torch_files', 'load'),
        ('numpy.core.multiarray', '_reconstruct'),
    ],
)
def test_other_functions_become_placeholders(tmp_path, write, module, name):
    """They are not called, and their arguments and state are dropped; items of dicts are kept."""
    canary = tmp_path / 'canary'
    function = Global(module, name)
    called = Build(Call(function, (f'touch {canary}',)), {'x': function})
    path = write(tmp_path / 'x.pth', {'a': dense(MATRIX, '0'), 'b': called, 'c': function})
    content = torch_files.load(path)
    assert not canary.exists()
    assert (content['b'], content['b'].origin, vars(content['b'])) == ({}, f'{module}.{name}', {})
    assert content['c'].origin == f'{module}.{name}'
    np.testing.assert_array_equal(content['a'].numpy(), MATRIX)


def test_nothing_runs_in_any_part_of_a_file(tmp_path):
    canary, path = tmp_path / 'canary', tmp_path / 'x.pth'
    pickle.loads(pickle.dumps(Canary(canary))).close()
    assert canary.exists()  # as anybody else would read it
    canary.unlink()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        hostile = pickle.dumps(Canary(canary), protocol)
        parts = [pickle.dumps(part) for part in (*LEGACY_HEAD, {}, [])]
        for position in range(len(parts)):
            path.write_bytes(b''.join([*parts[:position], hostile, *parts[position:]]))
            with contextlib.suppress(UserError):
                torch_files.load(path)
        write_pickle(path, hostile)
        assert re.fullmatch(r'_?io\.open', torch_files.load(path).origin)
    assert not canary.exists()


def test_classes_of_a_file_are_counted(tmp_path):
    content = b'\x80\2' + b''.join(b'cmodule\nName%d\n0' % number for number in range(3000)) + b'N.'
    with pytest.raises(UserError, match='refers to too many classes'):
        torch_files.load(write_pickle(tmp_path / 'x.pth', content))


@pytest.mark.parametrize('target', [Global('torch._utils', '_rebuild_tensor_v2'), Global('argparse', 'Namespace')])
def test_files_cannot_change_the_reader(tmp_path, target):
    path = write_zip(tmp_path / 'x.pth', Build(target, (None, {'function': 'changed', '__call__': 'changed'})))
    with pytest.raises(UserError, match='is not a complete PyTorch file of weights'):
        torch_files.load(path)
    np.testing.assert_array_equal(read_all(write_zip(tmp_path / 'y.pth', {'a': dense(MATRIX, '0')}))['a'], MATRIX)


def hostile_tensor(shape, strides, offset=0, count=6):
    return {'a': tensor(Storage('0', np.arange(count, dtype=np.float32)), shape, strides, offset)}


@WRITERS
@pytest.mark.parametrize(
    'content',
    [
        hostile_tensor((2, 3), (3, 1), offset=1),
        hostile_tensor((7,), (1,)),
        hostile_tensor((2,), (6,)),
        hostile_tensor((2,), (-1,), offset=1),
        hostile_tensor((-1,), (1,)),
        hostile_tensor((1,), (1,), offset=-1),
        hostile_tensor((10**12,), (0,)),
        hostile_tensor((2, 3), (1,)),
        hostile_tensor((2.0,), (1,)),
        hostile_tensor(('2',), (1,)),
        {'a': tensor('no storage', (1,), (1,))},
        {'a': tensor(Storage('0', MATRIX[0], count=10**15), (10**15,), (1,))},
        {'a': tensor(Storage('0', MATRIX[0], count=-1), (1,), (1,))},
        {'a': tensor(Storage('0', MATRIX[0]), (3,), (1,)), 'b': tensor(Storage('0', MATRIX[0], count=2), (2,), (1,))},
        {'a': Call(Global('_codecs', 'encode'), ('x', 'rot13'))},
    ],
    ids=range(15),
)
def test_tensors_stay_within_their_storage(tmp_path, write, content):
    path = write(tmp_path / 'x.pth', content)
    message = f'{path} is not a complete PyTorch file of weights ('
    with pytest.raises(UserError, match=re.escape(message)):
        read_all(path)


@WRITERS
def test_truncated_files(tmp_path, write):
    whole = tmp_path / 'whole.pth'
    write(whole, {'a': MATRIX, 'b': MATRIX})
    content = whole.read_bytes()
    path = tmp_path / 'x.pth'
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=re.escape(f'{path} is not a complete PyTorch file of weights (')):
            read_all(path)


def test_flipped_bytes_are_found_in_a_zip(tmp_path):
    path = tmp_path / 'x.pth'
    write_zip(path, {'a': MATRIX})
    content = path.read_bytes()
    position = content.index(MATRIX.tobytes()) + 5
    path.write_bytes(content[:position] + b'\x7f' + content[position + 1 :])
    with pytest.raises(UserError, match='archive/data/array 0 has another checksum than stated'):
        read_all(path)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'extra': [('byteorder', 'big')]}, 'its numbers are big-endian'),
        ({'compression': zipfile.ZIP_DEFLATED}, 'data.pkl is compressed'),
    ],
)
def test_other_zip_files(tmp_path, options, message):
    path = write_zip(tmp_path / 'x.pth', {'a': MATRIX}, **options)
    with pytest.raises(UserError, match=message):
        torch_files.load(path)


def test_other_legacy_files(tmp_path):
    path = tmp_path / 'x.pth'
    for head in (
        (1, *LEGACY_HEAD[1:]),
        (LEGACY_HEAD[0], 1002, LEGACY_HEAD[2]),
        (*LEGACY_HEAD[:2], {'little_endian': 0}),
    ):
        write_legacy(path, {}, head=head)
        with pytest.raises(UserError, match='it has no header of torch'):
            torch_files.load(path)
    write_legacy(path, {'a': MATRIX}, keys=[])
    with pytest.raises(UserError, match='a storage is missing'):
        torch_files.load(path)


@pytest.mark.parametrize('mode', ['w', 'w:gz', 'zip'])
def test_archives_of_checkpoints_are_refused(tmp_path, mode):
    """The last checkpoint in an archive would be found too, as the directory of a zip is searched from the end."""
    path = tmp_path / 'runs.tar'
    names = ['a/model_best.pth.tar', 'b/model_best.pth.tar']
    member = write_zip(tmp_path / 'x.pth', {'a': MATRIX})
    with zipfile.ZipFile(path, 'w') if mode == 'zip' else tarfile.open(path, mode) as archive:
        for name in names:
            (archive.write if mode == 'zip' else archive.add)(member, name)
    with pytest.raises(UserError, match=re.escape(f'{path} is an archive of checkpoints ({", ".join(names)}): unpack')):
        torch_files.load(path)
    with tarfile.open(path, 'w') as archive:
        archive.add(__file__, 'storages')
    with pytest.raises(UserError, match=re.escape(f'{path} was written by torch before 0.1.10; save it again')):
        torch_files.load(path)


def test_gzip_is_named(tmp_path):
    path = tmp_path / 'x.pth'
    path.write_bytes(gzip.compress(pickle.dumps({})))
    with pytest.raises(UserError, match=r'x\.pth is compressed with gzip: unpack it'):
        torch_files.load(path)


def nest(make, depth):
    """An object in which each container holds the next one twice."""
    node = make(())
    for _ in range(depth):
        node = make((node, node))
    return node


def contain_itself():
    endless = []
    endless.append(endless)
    return endless


MANY = b'](' + b'K\0' * 10**5 + b'eq\0'  # a list of 100,000 numbers, which is remembered as 0
HOSTILE = {  # a pickle, and how it is refused
    'a list in itself': (pickle.dumps(contain_itself(), protocol=2), 'contains itself'),
    'deep lists': (b']' * 10**5 + b'a' * (10**5 - 1) + b'.', 'RecursionError'),
    'lists twice in lists': (pickle.dumps(nest(list, 60), protocol=2), 'repeats its content'),
    'tuples twice in tuples': (pickle.dumps(nest(tuple, 60), protocol=2), 'repeats its content'),
    'a long string many times': (pickle.dumps(['x' * 10**6] * 10**4, protocol=2), 'repeats its content'),
    'a large array of bytes': (b'\x80\5\x96' + (2**36).to_bytes(8, 'little') + b'.', ''),
    'many copies of a list': (b'\x80\2](' + MANY + b'ctorch\nSize\nh\0\x85R' * 1000 + b'e.', 'repeats its content'),
    'many copies of attributes': (
        pickle.dumps({str(n): n for n in range(10**4)}, protocol=2)[:-1] + b'c__torch__\nM\n)\x81h\0b' * 10**4 + b'.',
        'repeats its content',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', HOSTILE)
def test_small_files_take_little_time_and_memory(tmp_path, name):
    pickled, message = HOSTILE[name]
    path = write_pickle(tmp_path / 'x.pth', pickled)
    with pytest.raises(UserError, match=f'is not a complete PyTorch file .*{message}'):
        torch_files.load(path)


@pytest.mark.parametrize('items', [b'%bK\0s', b'(%bK\0u', b'0(%bK\0d'])
def test_items_with_keys_that_take_time_are_dropped(tmp_path, items):
    content = b'\x80\2}' + items % pickle.dumps(nest(tuple, 60), protocol=2)[2:-1] + b'.'
    assert torch_files.load(write_pickle(tmp_path / 'x.pth', content)) == {}


def test_a_large_number_in_the_memo_takes_no_memory(tmp_path):
    assert torch_files.load(write_pickle(tmp_path / 'x.pth', b'\x80\2Nr\xff\xff\xff\x7f.')) is None


@pytest.mark.needs('torch')
@pytest.mark.parametrize('legacy', [False, True])
def test_optimizers_and_schedulers_as_objects(tmp_path, legacy):
    import torch

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    content = {'state_dict': model.state_dict(), 'optimizer': optimizer, 'scheduler': scheduler}
    torch.save(content, tmp_path / 'x.pth', _use_new_zipfile_serialization=not legacy)
    got = read_all(tmp_path / 'x.pth')
    assert got.keys() == {'state_dict.weight', 'state_dict.bias'}
    np.testing.assert_array_equal(got['state_dict.weight'], model.weight.detach())


@pytest.mark.needs('torch')
@pytest.mark.parametrize(('legacy', 'protocol'), [(False, 2), (True, 2), (False, 5)])
def test_files_written_by_torch(tmp_path, legacy, protocol):
    import torch

    torch.manual_seed(0)
    base = torch.randn(4, 6)
    tensors = {
        'base': base,
        'transposed': base.T,
        'view': base[1:3, ::2],
        'half': torch.randn(3).half(),
        'bfloat16': torch.randn(3, 2).bfloat16(),
        'long': torch.arange(5),
        'bool': torch.tensor([True, False]),
        'parameter': torch.nn.Parameter(torch.randn(2)),
        'number': torch.tensor(3.5),
        'empty': torch.zeros(0, 3),
    }
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = {
        'optimizer': optimizer.state_dict(),
        'model': [tensors, model.state_dict()],
        'opt': argparse.Namespace(margin=0.2, dtype=torch.float16, root=pathlib.Path('data')),
        'best_rsum': np.float64(281.5),
        'ranks': (np.arange(3), np.str_('x'), np.complex64(1)),
        'scheduler': torch.optim.lr_scheduler.MultiStepLR(optimizer, [15, 25]).state_dict(),
        'scaler': torch.amp.GradScaler('cpu').state_dict(),
        'random': (random.getstate(), np.random.get_state(), torch.get_rng_state()),  # noqa: NPY002
        'counts': collections.defaultdict(list, {(0, 'a'): [collections.deque([1])]}),
        'others': {
            'a': {1, 2},
            'b': types.SimpleNamespace(x=1),
            'c': slice(2),
            'd': torch.ones(1).to(torch.float8_e5m2),
        },
    }
    path = tmp_path / 'model_best.pth.tar'
    torch.save(checkpoint, path, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    got = read_all(path)
    for name, value in tensors.items():
        want = (value.float() if name == 'bfloat16' else value).detach().numpy()
        np.testing.assert_array_equal(got[f'model.0.{name}'].astype(want.dtype), want)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(got[f'model.1.{name}'], value.numpy())
    content = torch_files.load(path)
    assert (content['opt'].margin, content['best_rsum'], content['others']['b'].x) == (0.2, 281.5, 1)
    assert content['scheduler']['milestones'] == {15: 1, 25: 1}


@pytest.mark.needs('torch')
@pytest.mark.filterwarnings('ignore:.torch.jit')  # deprecated
def test_torchscript_written_by_torch(tmp_path):
    import torch

    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Linear(4, 5)).eval()
    torch.jit.script(model).save(tmp_path / 'model.pt')
    got = read_all(tmp_path / 'model.pt')
    want = model.state_dict()
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value.numpy())
