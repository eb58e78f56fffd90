"""The interfaces of other libraries, each with the library itself where it is installed."""

import dataclasses
import sys
import types

import numpy as np
import pytest
from PIL import Image

import jitm
from jitm.errors import UserError
from jitm.models.scan import SCAN
from jitm.serving import adapters
from jitm.serving.images import as_split, is_one_image
from tests.support.photos import odd_photos


@pytest.fixture(scope='module')
def run(finished):
    return jitm.load(finished)


@pytest.fixture(scope='module')
def data(run):
    return run.load_data('test')


def test_encode_returns_the_vectors_whose_products_are_the_scores(run, data, capfd):
    images = run.encode(data.images)
    captions = run.encode(list(data.captions))
    assert images.dtype == captions.dtype == np.float32
    want = run.similarity(run.encode_image(data.images), run.encode_text(data.captions))
    np.testing.assert_allclose(images @ captions.T, want, atol=1e-5)
    one = run.encode(sentences=data.captions[3])
    assert one.shape == images.shape[1:]
    np.testing.assert_allclose(one, captions[3], atol=1e-6)
    batched = run.encode(data.images, batch_size=4, show_progress_bar=True, convert_to_numpy=True)
    np.testing.assert_allclose(batched, images, atol=1e-6)
    assert '3/3' in capfd.readouterr().err
    unit = run.encode(data.images, normalize_embeddings=True)
    np.testing.assert_allclose(unit, images / np.linalg.norm(images, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ('words', 'options', 'message'),
    [
        ([[]], {}, 'there is nothing to encode; give captions or images'),
        ([np.zeros((0, 3, 200))], {}, 'there is nothing to encode; give captions or images'),
        ([], {}, r'^encode needs captions or images, .*: give one of them'),
        ([], {'inputs': 'a ring', 'sentences': 'a ring'}, r'^encode needs captions or images, .*: give one of them'),
        (
            ['a ring'],
            {'device': 'cuda', 'prompt_name': 'query', 'prompt': None},
            r'^encode accepts no device, prompt_name here: leave it out; known are batch',
        ),
        (['a ring'], {'normalise_embeddings': True}, r"no normalise_embeddings .* did you mean 'normalize_embeddings'"),
        (['a ring'], {'batch_size': 0}, 'batch_size is 0; it must be a positive integer'),
        ([['a red ring', 7]], {}, 'caption 1 has type int; give a string'),
    ],
)
def test_encode_refuses_what_is_neither(run, words, options, message):
    with pytest.raises(UserError, match=message):
        run.encode(*words, **options)


def test_scores_without_vectors_are_refused(run):
    attention = jitm.api.LoadedRun(run.run)
    attention.run = dataclasses.replace(run.run, model=SCAN)
    for call in (lambda: attention.encode('a red ring'), lambda: adapters.CLIPBenchmark(attention)):
        with pytest.raises(UserError, match='are not inner products of vectors'):
            call()


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (adapters.CLIPBenchmark, r"torch is not installed: run pip install -e '\.\[clip-benchmark\]'"),
        (lambda run: adapters.MTEB(run, 'mine/vse'), r"torch is not installed: run pip install -e '\.\[mteb\]'"),
        (lambda run: run.encode('a ring', convert_to_tensor=True), r"-e '\.\[parity\]'"),
    ],
)
def test_without_torch(run, make, message, monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch', None)
    with pytest.raises(UserError, match=message):
        make(run)


@pytest.mark.needs('torch', 'clip_benchmark')
def test_clip_benchmark_computes_our_recalls(run, data):
    """Its text recall counts a query as found if any of its captions is; ours does too."""
    import torch
    from clip_benchmark.metrics import zeroshot_retrieval as retrieval

    images = torch.from_numpy(np.array(data.images.regions, np.float32))
    captions = [[data.captions[t] for t in np.flatnonzero(data.image_of_text == i)] for i in range(len(images))]
    batches = [(images[start : start + 4], captions[start : start + 4]) for start in range(0, len(images), 4)]
    model = adapters.CLIPBenchmark(run)
    got = retrieval.evaluate(model, batches, model.tokenize, 'cpu', amp=False, recall_k_list=[1, 5])
    want = jitm.evaluate(run, 'test')
    for k in (1, 5):
        assert got[f'image_retrieval_recall@{k}'] == pytest.approx(want[f't2i/recall@{k}'] / 100)
        assert got[f'text_retrieval_recall@{k}'] == pytest.approx(want[f'i2t/recall@{k}'] / 100)


@pytest.mark.needs('torch', 'mteb')
def test_mteb_encoder_has_its_interface(run, data):
    import mteb

    encoder = adapters.MTEB(run, 'mine/vse')
    assert isinstance(encoder.mteb_model_meta, mteb.models.ModelMeta)
    captions = list(data.captions[:5])
    batches = [{'id': ['a', 'b'], 'text': captions[:2]}, {'id': ['c', 'd', 'e'], 'text': captions[2:]}]
    description = {'task_metadata': None, 'hf_split': 'test', 'hf_subset': 'default', 'prompt_type': None}
    texts = encoder.encode(batches, **description)
    np.testing.assert_allclose(texts, run.encode(captions), atol=1e-6)
    images = encoder.encode([{'image': list(data.images[:3])}], **description)
    sims = run.similarity(run.encode_image(data.images[:3]), run.encode_text(captions))
    np.testing.assert_allclose(encoder.similarity(texts, images).numpy(), sims.T, atol=1e-5)
    pairwise = encoder.similarity_pairwise(texts[:3], images)
    np.testing.assert_allclose(pairwise.numpy(), np.diag(sims), atol=1e-5)


@pytest.mark.parametrize('name', ['turned.jpg', 'clear.png', 'deep.png', 'inks.jpg', 'few.png'])
def test_photos_of_pillow_are_read_as_their_files(name, tmp_path):
    odd_photos(tmp_path)
    run = types.SimpleNamespace(image_size=(8, 8), config={'data': {}}, model=types.SimpleNamespace(reads=('pixels',)))
    path = tmp_path / name
    photo = Image.open(path)
    want = as_split([path], run).pixels[:]
    assert want.shape == (1, 8, 8, 3)
    np.testing.assert_array_equal(
        as_split([photo, photo, path.read_bytes()], run).pixels[:], np.repeat(want, 3, axis=0)
    )
    assert all(is_one_image(one, run) for one in (photo, path, str(path), path.read_bytes(), want[0]))
    assert not is_one_image([photo], run)
    with pytest.raises(UserError, match='image 1 has 8 x 999 pixels: no side may be 50 times'):
        as_split([photo, Image.new('RGB', (8, 999))], run)
