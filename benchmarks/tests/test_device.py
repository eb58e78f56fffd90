"""`python -m benchmarks device`: its dry run, what it does where a part fails, and its table."""

import json
import os
import pickle
from pathlib import Path

import jax
import pytest

from benchmarks import command, device, device_found, device_jitm, peers, results, topologies
from benchmarks.workers import Answer, WorkerError
from jitm.data.text.vocabularies import load_vocabulary
from tests.conftest import CACHE, ROOT

H100 = {'platform': 'gpu', 'kind': 'NVIDIA H100 80GB HBM3', 'count': 8, 'capability': '9.0', 'torch device': 'cuda'}
TPU = {'platform': 'tpu', 'kind': 'TPU v5 lite', 'count': 4, 'capability': '', 'torch device': 'cpu'}
PAGE = f'Steps.\n\n<!-- benchmarks device -->\n{results.NOTHING}\nEnd.\n'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """A folder with tiny data."""
    folder = tmp_path_factory.mktemp('data')
    device.write_data(folder, device.TINY)
    return folder


@pytest.mark.needs('torch')
@pytest.mark.slow
def test_dry_run_measures_both_sides_until_the_time_is_over(tmp_path, monkeypatch, measured):
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', CACHE)
    (row,) = measured('device', '--dry_run', '--minutes', '0')
    assert [*row.values()][:5] == ['cpu', 'vsepp', 4, 'float32', 'precision=highest']
    assert row['ratio'] == row['jitm steps/s'] / row['PyTorch steps/s'] > 0
    assert row['difference of losses'] < 1e-5
    assert row['jitm GB'] == row['PyTorch GB'] == row['% of the peak'] == ''  # a CPU does not report them
    line = json.loads((tmp_path / 'results.jsonl').read_text())
    assert (line['platform'], line['jax'], line['tests']) == ('cpu', jax.__version__, device.run_tests(1, 0))
    page = results.rewritten(PAGE, device.tables(tmp_path / 'results.jsonl'))
    assert '| cpu | vsepp | 4 | float32 | precision=highest | ' in page
    assert results.NOTHING not in page


@pytest.mark.needs('torch', 'transformers')
@pytest.mark.slow
@pytest.mark.parametrize('name', device.SYSTEMS)
def test_both_sides_compute_the_same_in_bfloat16(tmp_path, data, name):
    from benchmarks import device_torch

    config = peers.without_dropout(device.make_config(name, device.TINY, 4, data))
    (operations,) = peers.write_inputs(tmp_path, device.SYSTEMS[name], config, 1).values()
    assert operations > 0
    changed, keys = device.at_precision(config, 'default', 'bfloat16')
    assert len(keys) == {'clip': 3, 'minilm': 2}.get(name, 1)
    (tmp_path / 'config.pkl').write_bytes(pickle.dumps(changed))
    ours, theirs = device_jitm.Side(tmp_path), device_torch.Side(tmp_path, 'cpu', 'bfloat16')
    first = [side(1) for side in (ours, theirs)]
    assert first[0].number == pytest.approx(first[1].number, rel=0.03)
    second = [side(2) for side in (ours, theirs)]
    assert [answer.compiled for answer in first + second] == [True, True, False, False]
    assert second[0].number != first[0].number
    assert [side('memory').number for side in (ours, theirs)] == [0, 0]


def test_words_of_the_captions_are_single_pieces(data):
    text = (data / 'train_caps.txt').read_text()
    for name, captions in (('vocab.txt', text), ('merges.txt', text.translate(device.LETTERS))):
        vocabulary = load_vocabulary(str(data / name))
        for caption in captions.splitlines():
            assert len(vocabulary.encode(caption)) == len(caption.split()) + 2
    assert json.loads((data / 'photos/dev/metadata.jsonl').read_text().splitlines()[0])['captions'][0] in captions


@pytest.mark.parametrize(
    ('kind', 'peaks'),
    [
        ('NVIDIA H100 80GB HBM3', {'bfloat16': 989, 'TF32': 495, 'float32': 67}),
        ('NVIDIA A100-SXM4-40GB', {'bfloat16': 312, 'TF32': 156, 'float32': 19.5}),
        ('NVIDIA A10', {'bfloat16': 125, 'TF32': 62.5, 'float32': 31.2}),
        ('Tesla T4', {'float32': 8.1}),
        ('TPU v5 lite', {'bfloat16': 197, '3 passes': 197 / 3, 'float32': 197 / 6}),
        ('NVIDIA A10G', {}),
        ('cpu', {}),
    ],
)
def test_peaks_of_devices(kind, peaks):
    assert topologies.peak_tflops(kind) == peaks


@pytest.mark.parametrize(
    ('found', 'precisions'),
    [
        (H100, ['float32', 'TF32', 'bfloat16']),
        (H100 | {'capability': '7.5'}, ['float32']),
        (H100 | {'capability': 'gfx942'}, ['float32', 'TF32', 'bfloat16']),
        (H100 | {'capability': '10.0'}, ['float32', 'TF32', 'bfloat16']),
        (TPU, ['float32', '3 passes', 'bfloat16']),
    ],
)
def test_precisions_of_devices(found, precisions):
    assert [*device.precisions(found)] == precisions


class Process:
    """Stands for the process of a side: a step takes 0.01 s, and memory is exhausted after some steps."""

    def __init__(self, limit=10_000):
        self.limit = limit

    def __call__(self, work):
        if work == 'memory':
            return Answer(0.0, 5e9, compiled=False)
        self.limit -= work
        if self.limit < 0:
            raise WorkerError('device_torch', 'OutOfMemoryError')
        return Answer(work / 100, 2.0, compiled=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize('limit', [10_000, 3, 150])
def test_a_row_says_what_failed(monkeypatch, limit):
    processes = {'device_jitm': Process(), 'device_torch': Process(limit)}
    monkeypatch.setattr(device, 'Worker', lambda module, *_: processes[module])
    sides = device.take_turns(Path(), [*device.SIDES], 'TF32', seconds=1.0)
    row = device.columns(sides, operations=2e12, peak=495, compares_losses=True)
    failed = limit < 10_000
    assert row == {
        'jitm steps/s': pytest.approx(100),
        'PyTorch steps/s': 'out of memory' if failed else pytest.approx(100),
        'ratio': '' if failed else pytest.approx(1),
        'jitm GB': 5.0,
        'PyTorch GB': '' if failed else 5.0,
        '% of the peak': pytest.approx(100 * 200 / 495),
        'difference of losses': '' if failed else 0.0,
    }


@pytest.mark.parametrize(
    ('found', 'sides', 'shares'),
    [
        (H100, ['jitm', 'PyTorch'], [67, 495, 495]),  # VSE++ has no dtype, and its products are TF32
        (H100 | {'torch device': 'cpu'}, ['jitm'], [67, 495, 495]),
        (TPU, ['jitm'], [4 * 197 / 6, 4 * 197 / 3, 4 * 197]),
    ],
)
def test_rows_of_accelerators(monkeypatch, data, found, sides, shares):
    started = []

    def take_turns(folder, names, precision, seconds):
        started.append((names, pickle.loads((folder / 'config.pkl').read_bytes())['precision'], precision))
        return {name: device.Side(Process()) for name in names}

    monkeypatch.setattr(device, 'take_turns', take_turns)
    monkeypatch.setattr(device.Side, 'rate', 100.0)
    monkeypatch.setattr(peers, 'write_inputs', lambda *_: {0: 1e12})
    rows = [*device.measure('vsepp', device.TINY, data, found, 1.0)]
    assert started == [(sides, chosen, precision) for precision, chosen in device.precisions(found).items()]
    assert [row['% of the peak'] for row in rows] == pytest.approx([100 * 100 / share for share in shares])
    assert {row['device'] for row in rows} == {found['kind'] if found is not TPU else '4 x TPU v5 lite'}


def test_without_an_accelerator_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(device, 'find', lambda: TPU | {'platform': 'cpu'})
    with pytest.raises(SystemExit) as end:
        command.main('benchmarks', ['device'])
    assert end.value.code == 2
    assert 'error: jax finds no GPU or TPU: pip install' in capsys.readouterr().err


@pytest.mark.slow
def test_devices_that_jax_cannot_use(monkeypatch):
    monkeypatch.setenv('JAX_PLATFORMS', 'none')
    with pytest.raises(results.UserError, match='jax cannot use the devices'):
        device.find()


def test_tests_of_several_devices_exist():
    for test in device.TESTS:
        path, _, name = test.partition('::')
        assert f'\ndef {name}(' in (ROOT / path).read_text()


@pytest.mark.slow
def test_tests_of_several_devices_run(monkeypatch):
    monkeypatch.setattr(device, 'TESTS', device.TESTS[:1])
    assert device.run_tests(1, 60) == 'left out, because they need 2 devices'
    assert device.run_tests(3, 0.1) == 'not finished after 0 s'
    ended = device.run_tests(3, 600)  # on CPU devices, which jax chooses where there are no others
    assert ended.startswith('1 passed')
    assert ended.endswith(' on 2 devices')


def test_one_gpu_is_used_by_both_sides(monkeypatch):
    monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'true')
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    for visible, used in (('0', '0'), ('2,3', '2'), ('', '')):
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
        device_found.use_first_gpu()
        assert os.environ['CUDA_VISIBLE_DEVICES'] == used
    assert os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'


def test_a_page_without_results_says_so(tmp_path):
    assert results.rewritten(PAGE, device.tables(tmp_path / 'devices.jsonl')) == PAGE


def test_the_last_row_of_a_case_counts(tmp_path):
    path = tmp_path / 'devices.jsonl'
    case = {'device': 'NVIDIA L4', 'system': 'scan', 'precision': 'TF32'}
    for flags, speed in ((['--minutes=1'], 1.0), ([], 2.0)):
        results.add(path, 'device', flags, [case | {'jitm steps/s': speed}], {'kind': 'NVIDIA L4'})
    assert device.tables(path) == {'device': [case | {'jitm steps/s': 2.0}]}
    assert '"kind": "NVIDIA L4"' in path.read_text()
