"""The Python interface: a loaded run encodes, compares, searches and evaluates; bad arguments are one sentence."""

import ast
import doctest
import functools
import importlib
import inspect
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import jitm
from jitm import api
from jitm.commands import cli
from jitm.data.images.pixels import Photos
from jitm.data.text.token_vectors import TokenVectors
from jitm.devices import parallel
from jitm.encoders.networks import FeatureNetwork
from jitm.errors import UserError
from jitm.evaluation import protocol
from jitm.losses import anchored, ranking
from jitm.models.vse import VSE
from jitm.runs.run import Run, load_run, read_split
from jitm.serving import loaded_run
from jitm.serving.images import make_transform
from jitm.types import Texts
from tests.conftest import ROOT, environment
from tests.support.matchers import MATCHERS, make_inputs


@pytest.fixture(scope='module')
def run(finished):
    return jitm.load(finished)


@pytest.fixture(scope='module')
def sims(finished):
    """The similarities of the evaluation of the test split."""
    loaded = load_run(finished)
    return protocol.evaluate_runs([loaded], read_split([loaded], 'test'))[1]


@pytest.fixture(scope='module')
def data(run):
    return run.load_data('test')


@pytest.fixture(scope='module')
def images(run, data):
    return run.encode_image(data.images)


@pytest.mark.parametrize('module', [api, anchored, ranking], ids=lambda module: module.__name__)
def test_examples_of_docstrings_are_right(module, finished, tmp_path, monkeypatch):
    (tmp_path / 'runs').mkdir()
    (tmp_path / 'runs' / 'demo').symlink_to(finished)
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, extraglobs={'jitm': jitm}, optionflags=doctest.ELLIPSIS, raise_on_error=False)
    assert result.attempted > 1
    assert not result.failed


def test_similarities_are_those_of_an_evaluation(run, data, images, sims):
    captions = run.encode_text(data.captions)
    np.testing.assert_allclose(run.similarity(images, captions), sims, atol=1e-6)
    pairwise = run.similarity_pairwise(images[data.image_of_text], captions)
    np.testing.assert_allclose(pairwise, sims[data.image_of_text, np.arange(len(data.captions))], atol=1e-6)
    assert run.similarity(images, captions).dtype == pairwise.dtype == np.float32
    np.testing.assert_array_equal(run.encode_text('a ring'), run.encode_text(['a ring']))


def test_images_may_be_arrays_lists_or_data(run, data, images):
    first = data.images[:3]
    assert len(first) == 3
    features = [data.images[i] for i in range(3)]
    assert [array.shape for array in features] == [(count, 200) for count in first.counts]
    np.testing.assert_allclose(run.encode_image(first), images[:3], atol=1e-6)
    np.testing.assert_allclose(run.encode_image(features), images[:3], atol=1e-6)
    array = np.stack([features[0]] * 2)
    np.testing.assert_allclose(run.encode_image(array), images[[0, 0]], atol=1e-6)
    np.testing.assert_allclose(run.encode_image([features[0][0]]), run.encode_image([features[0][:1]]), atol=1e-6)
    np.testing.assert_allclose(run.encode_image(jax.numpy.asarray(array)), images[[0, 0]], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['scan_t2i', 'uniter'])
def test_similarities_are_those_of_the_model(name):
    """For models of both kinds that read pairs: lists of images and captions of various lengths."""
    model, (images, texts) = MATCHERS[name], make_inputs(images=3, texts=6, padded=False)
    boxes = np.sort(images.locations[..., :4])
    sizes = boxes[..., 2:] - boxes[..., :2]
    images = images.replace(locations=np.concatenate([boxes, sizes, sizes.prod(axis=-1, keepdims=True)], axis=-1))
    variables = jax.jit(model.init)(jax.random.key(0), images, Texts(texts.ids[:3], texts.lengths[:3]))
    vocabulary = types.SimpleNamespace(encode=lambda caption: np.array(caption.split(), np.int32))
    config = {'data': {}, 'evaluation': {'dtype': 'float32', 'precision': 'highest'}}
    run = loaded_run.LoadedRun(Run('nowhere', 1, 'target', model, variables, vocabulary, config, 6, ''))
    regions = [images.regions[i, :count] for i, count in enumerate(images.counts)]
    corners = [boxes[i, :count] for i, count in enumerate(images.counts)]
    reads_boxes = 'locations' in model.reads
    refused = (
        (None, 'nowhere has a model that reads the location of regions: give their boxes'),
        (3, 'boxes have type int; give x1 y1 x2 y2 of the regions'),
        (corners[:1], 'boxes have the shapes'),
        ([2 * box for box in corners], 'boxes must be x1 y1 x2 y2 as fractions'),
        ([box[:, [2, 1, 0, 3]] for box in corners], 'boxes must be .* with x1 <= x2 and y1 <= y2'),
    )
    for wrong, sentence in refused if reads_boxes else ((corners, 'a model that does not read boxes: leave them out'),):
        with pytest.raises(UserError, match=sentence):
            run.encode_image(regions, boxes=wrong)
    captions = [' '.join(map(str, ids[:length])) for ids, length in zip(texts.ids, texts.lengths, strict=True)]
    encoded = run.encode_image(regions, boxes=corners if reads_boxes else None), run.encode_text(captions)
    sims = jax.jit(model.apply)(variables, images, texts)
    np.testing.assert_allclose(run.similarity(*encoded), sims, atol=1e-5)
    three = jax.tree.map(lambda x: x[:3], encoded[1])
    np.testing.assert_allclose(run.similarity_pairwise(encoded[0], three), np.diag(sims[:, :3]), atol=1e-5)


def test_search_ranks_by_similarity(run, data, images, sims):
    hits = run.search(data.captions[7], images, top_k=3)
    order = np.argsort(-sims[:, 7])[:3]
    assert [hit.index for hit in hits] == order.tolist()
    np.testing.assert_allclose([hit.score for hit in hits], sims[order, 7], atol=1e-6)
    assert len(run.search(data.captions[7], images, top_k=99)) == len(images)
    several = run.search([data.captions[7], data.captions[0]], images, top_k=3)
    assert [hit.index for hit in several[0]] == [hit.index for hit in hits]
    assert len(several) == 2


def test_unknown_words_of_queries_are_warned_of(run, images, data, recwarn):
    with pytest.warns(UserWarning, match=r'^words that the vocabulary of \S*run lacks: zzz, qqq$'):
        run.search('a zzz ring qqq zzz', images)
    with pytest.warns(UserWarning, match=r'lacks: zzz$'):
        jitm.score(run, data.images[0], 'zzz')
    recwarn.clear()
    run.search('a red ring', images)
    run.search(['a zzz ring'], images)  # a list may be of a data set with its rare words
    assert not recwarn.list


def test_evaluate_gives_the_metrics_of_the_command(run, finished, data, capsys):
    metrics = jitm.evaluate(run, 'test')
    assert jitm.evaluate(finished, 'test') == jitm.evaluate([finished, run], 'test') == metrics
    assert jitm.evaluate(run, data) == metrics
    assert set(jitm.evaluate(run, 'test', folds=2)) == set(metrics)
    assert cli.main(['eval', '--workdir', str(finished), '--split', 'test']) == 0
    assert f'rsum {metrics["rsum"]:.1f}' in capsys.readouterr().out


def test_score_has_an_axis_for_each_side_of_several(run, finished, data, sims):
    features = [data.images[i] for i in range(10)]
    np.testing.assert_allclose(jitm.score(run, features, data.captions), sims, atol=1e-6)
    one = jitm.score(finished, features[3], data.captions[7])
    assert one.shape == ()
    np.testing.assert_allclose(one, sims[3, 7], atol=1e-6)
    np.testing.assert_allclose(jitm.score(run, features[3], data.captions[5:8]), sims[3, 5:8], atol=1e-6)
    np.testing.assert_allclose(jitm.score(run, features[2:5], data.captions[7]), sims[2:5, 7], atol=1e-6)
    vector = features[0][0]
    assert jitm.score(run, vector, 'a red circle') == jitm.score(run, vector[None], 'a red circle')


@pytest.mark.slow
def test_repeated_calls_compile_nothing(run, data, monkeypatch):
    """Nor do calls with other numbers of images and captions of the same padded shape."""
    traced = []
    for name in ('encode_image', 'encode_text', 'vectors', 'similarity_pairwise'):
        original = getattr(VSE, name)

        def method(self, *arguments, name=name, original=original, **keywords):
            traced.append(name)
            return original(self, *arguments, **keywords)

        monkeypatch.setattr(VSE, name, method)
    parallel.map_rows.cache_clear()

    def use(run, count):
        images = run.encode_image(data.images[:count])
        captions = run.encode_text(['a red circle'] * count)
        run.similarity(images, captions)
        run.similarity_pairwise(images, captions)
        run.search('a blue ring', images)
        jitm.score(run, data.images[:count], ['a red circle'] * count)

    use(run, 4)
    first = list(traced)
    assert {'encode_image', 'encode_text', 'vectors', 'similarity_pairwise'} <= set(first)
    use(run, 4)
    use(run, 3)
    assert traced == first
    use(jitm.load(run.run.workdir), 4)
    assert sorted(traced[len(first) :]) == ['encode_image', 'encode_text']  # shapes alone, nothing is compiled
    run.encode_image(data.images[:10])
    assert len(traced) > len(first)  # another padded shape


NO_LISTS = (None, 3, {'a': 1}, (x for x in 'a'))


def test_wrong_arguments_are_one_sentence(run, data, images):
    captions = run.encode_text(data.captions[:2])
    features = data.images[0]
    for call, sentence in (
        (lambda: run.encode_image('photo.jpg'), 'features of an unknown network, which cannot read photos'),
        (lambda: run.encode_image(features), rf'images are of shape \[{len(features)}, 200\]'),
        (lambda: run.encode_image([]), 'there are no images'),
        (lambda: run.encode_image([[features, [0]]]), 'image 0 must be an array of real numbers, not list'),
        (lambda: run.encode_image([features, np.zeros((3, 7))]), r'image 1 has features of shape \[3, 7\].*, 200\]'),
        (lambda: run.encode_image([features, features[:0]]), r'image 1 has features of shape \[0, 200\]'),
        (lambda: run.encode_image([features, features * np.nan]), 'image 1 has features that are not finite'),
        (lambda: run.encode_text([]), 'there are no captions'),
        (lambda: run.encode_text(['a ring', ' ']), 'caption 1 is empty; give at least one word'),
        (lambda: run.similarity(features, captions), 'images are not encodings of this run; make them with run.enco'),
        (lambda: run.similarity(images, data.captions), 'captions are not encodings of this run; make them with'),
        (lambda: run.similarity(images.astype(complex), captions), 'images are not encodings of this run'),
        (lambda: run.similarity(images[:0], captions), 'there are no images'),
        (lambda: run.similarity_pairwise(images[:3], captions), 'there are 3 images and 2 captions'),
        (lambda: run.search('a red circle', images, top_k=0), 'top_k is 0; it must be a positive integer'),
        (lambda: jitm.load('nowhere'), 'nowhere is not a run directory'),
        (lambda: jitm.load(None), 'the run has type NoneType; give a run directory or the result of jitm.load'),
        (lambda: jitm.load(run.run.workdir, step='5'), "step is '5' and member is None; give an integer and a name"),
        (lambda: jitm.evaluate([], 'test'), 'there is no run to evaluate'),
        (lambda: jitm.evaluate(run, data, data_root='x'), 'the split has type SceneSplit; give its name, or the resu'),
        (lambda: jitm.evaluate(run, 'test', folds=0), 'folds is 0; it must be a positive integer'),
        (lambda: jitm.score(run, features.astype(float) * 1e300, 'a'), 'features that are not finite, or whose squ'),
        (lambda: jitm.score(run, features + 1j, 'a'), 'real numbers, not an array of complex'),
        (lambda: jitm.score(run, np.float32(3), 'a'), r'image 0 has features of shape \[1, 1\]'),
        (lambda: jitm.score(run, features, np.array(['a', None], object)), 'caption 1 has type NoneType; give'),
        (lambda: jitm.score(run, features, 'a', boxes=features[:, :4]), 'does not read boxes: leave them'),
        (lambda: jitm.score(run, features, 'a', tags=['sky']), 'a model that does not read tags: leave them out'),
        *((lambda x=x: jitm.score(run, x, 'a'), f'images are of {type(x).__name__}; give features') for x in NO_LISTS),
        *((lambda x=x: jitm.score(run, features, x), f'captions have type {type(x).__name__}; give') for x in NO_LISTS),
        *((lambda x=x: jitm.score(x, features, 'a'), f'the run has type {type(x).__name__}') for x in (3, [], b'')),
    ):
        with pytest.raises(UserError, match=sentence) as caught:
            call()
        assert len(str(caught.value).splitlines()) == 1


def test_captions_longer_than_the_model_reads_are_refused(run, monkeypatch):
    from jitm.types import TextFormat

    monkeypatch.setattr(VSE, 'text_format', TextFormat('words', 7))
    with pytest.raises(
        UserError, match='caption 1 has 9 tokens, special tokens included, but the model reads at most 7'
    ):
        run.encode_text(['a ring', 'a b c d e f g'])


def test_a_loaded_run_says_what_it_is(finished, monkeypatch):
    monkeypatch.setenv('HOME', str(finished.parent))
    run = jitm.load(f'~/{finished.name}')
    assert repr(run) == repr(run.run) == f'<VSE target of {finished}, step {run.run.step}>'


def test_what_a_notebook_shows_is_short(run, data):
    assert repr(data) == repr(data.images) == '<scenes/test: 10 images, 50 captions>'
    photos = Photos([b''] * 1000, make_transform(224, {}))
    vectors = TokenVectors(np.zeros((1000, 8)), np.ones(1000, np.int32), run.run.vocabulary)
    network = FeatureNetwork(run.run.model, run.run.variables, 1, 'float32', 'high', {'config': 'x'})
    for shown in (run, run.run.vocabulary, data.images, photos, vectors, network):
        assert len(repr(shown)) < 200


def test_a_long_value_leaves_the_ends_of_a_message(run, data):
    with pytest.raises(UserError, match=r'(?s)^the split is .* \.\.\. .*; give the name of one') as caught:
        run.load_data(list(data.captions) * 100)
    assert len(str(caught.value)) < 2100


def test_the_public_names_are_listed():
    names = ['Index', '__version__', 'configs', 'evaluate', 'load', 'losses', 'metrics', 'score']
    assert dir(jitm) == jitm.__all__ == names
    for name in jitm.__all__:
        assert getattr(jitm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'scores'"):
        _ = jitm.scores


def test_the_import_is_light():
    code = "import jitm, sys; print(jitm.__version__, {'jax', 'numpy', 'flax'} & set(sys.modules)); jitm.configs.load"
    result = subprocess.run([sys.executable, '-c', code], env=environment(), capture_output=True, text=True)
    assert result.stdout == f'{jitm.__version__} set()\n'


# Public functions of the modules of losses that are no losses.
PARTS = {'hardest_positive', 'hardest_negative', 'prepare', 'masked_log_softmax', 'masked_mean', 'masked_sum'}


def test_every_loss_is_exported_under_its_name():
    losses = set()
    for path in (ROOT / 'jitm' / 'losses').glob('*.py'):
        if path.stem == '__init__':
            continue
        module = importlib.import_module(f'jitm.losses.{path.stem}')
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith('_') and node.name not in PARTS:
                losses.add(node.name)
                assert getattr(jitm.losses, node.name) is getattr(module, node.name)
    assert losses == set(jitm.losses.__all__)
    assert jitm.losses.__all__ == sorted(jitm.losses.__all__)


MASK = np.eye(2, 3, dtype=bool)
SCORES = np.array([[0.5, 0.4, 0.1], [0.1, 0.7, 0.6]], np.float32)


@pytest.mark.parametrize(
    'mask',
    [
        *(MASK.tolist(), MASK.astype(int), MASK.astype(float), jax.numpy.asarray(MASK, int)),
        pytest.param('torch', marks=pytest.mark.needs('torch')),
    ],
)
def test_losses_take_what_holds_numbers(mask):
    margin = np.array(0.2)
    if isinstance(mask, str):
        import torch

        mask, margin = map(torch.tensor, (MASK, 0.2))
    got = jitm.losses.max_of_hinges(SCORES.tolist(), mask, margin=margin)
    np.testing.assert_allclose(got, [0.1, 0.1], atol=1e-6)


FLOATS = 'it must be float [Q, C]'
BOOLS = 'it must be bool [Q, C]'
WRONG_ARGUMENTS = {
    'max_of_hinges': [
        ({'scores': SCORES[0]}, f'scores is float32 [3]; {FLOATS}'),
        ({'scores': [[1.0], [1.0, 2.0]]}, 'scores is not an array: '),
        ({'scores': SCORES[:, :0]}, 'scores is empty: it has the shape [2, 0]'),
        ({'scores': SCORES.astype(complex)}, f'scores is complex128 [2, 3]; {FLOATS}'),
        ({'scores': SCORES.astype(np.float16)}, 'scores is float16, too coarse for a loss; it must be'),
        ({'positives': MASK / 2}, f'positives is float64 [2, 3]; {BOOLS}'),
        ({'positives': [0, 1]}, f'positives is bool [2]; {BOOLS}, Q = 2, C = 3'),
        ({'positives': 2 * MASK}, f'positives is int64 [2, 3]; {BOOLS}'),
        ({'negatives': MASK.T}, f'negatives is bool [3, 2]; {BOOLS}, Q = 2, C = 3'),
        ({'negatives': MASK}, 'negatives has candidates that are in positives, too; take them out'),
        ({'margin': '0.2'}, "margin is '0.2'; it must be a number"),
        ({'margin': -1}, 'margin is -1; it must be at least 0'),
        ({'margin': np.array(-1.0)}, 'margin is -1.0; it must be at least 0'),
        ({'margin': np.array(True)}, 'margin is True; it must be a number'),
    ],
    'softmax_contrastive': [({'temperature': jax.numpy.float32(0)}, 'temperature is 0.0; it must be above 0')],
    'adaptive_margin': [({'relevance': SCORES[0]}, f'relevance is float32 [3]; {FLOATS}, Q = 2, C = 3')],
    'soft_margin': [({'labels': [0, 1, 1]}, 'labels is float32 [3]; it must be float [Q], Q = 2')],
    'ladder': [({'relevance': SCORES, 'thresholds': (-2,)}, 'thresholds.0 is -2; it must be')],
}


@pytest.mark.parametrize('name', WRONG_ARGUMENTS)
def test_losses_name_a_wrong_argument(name):
    """Also where they are traced."""
    loss = getattr(jitm.losses, name)
    common = {'scores': SCORES, 'positives': MASK, 'margin': 0.2}
    parameters = inspect.signature(loss).parameters
    for wrong, sentence in WRONG_ARGUMENTS[name]:
        call = functools.partial(loss, **{key: x for key, x in (common | wrong).items() if key in parameters})
        for function in (call, functools.partial(jax.eval_shape, call)):
            with pytest.raises(ValueError, match=f'^{re.escape(sentence)}'):
                function()


def test_losses_may_be_traced_and_show_the_names_of_their_hints():
    traced = jax.jit(jitm.losses.softmax_contrastive)(SCORES, MASK, temperature=0.1)
    np.testing.assert_allclose(traced, jitm.losses.softmax_contrastive(SCORES, MASK, temperature=0.1), rtol=1e-6)
    with pytest.raises(ValueError, match=r'^positives is int32 \[2, 3\]; it must be bool'):
        jax.jit(jitm.losses.matching_cross_entropy)(SCORES, MASK.astype(int))
    assert str(inspect.signature(jitm.losses.matching_cross_entropy)).startswith("(scores: 'Scores', positives: 'Mask'")


@pytest.mark.parametrize(
    ('name', 'loss'),
    [('infonce', 'softmax_contrastive'), ('SelHN', 'selective_hard_negative'), ('max_hinges', 'max_of_hinges')],
)
def test_names_of_papers_lead_to_their_losses(name, loss):
    with pytest.raises(AttributeError, match=f"no attribute '{name}', did you mean '{loss}'"):
        getattr(jitm.losses, name)
