"""Attention of retrieved pairs: its values, the pairs, the figures and the command."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

from jitm.commands import cli
from jitm.data import scenes
from jitm.data.arrays import grid_boxes
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.evaluation import explain
from jitm.evaluation.saved import EVALUATION
from jitm.files.outputs import UNFINISHED, OutputFolder
from jitm.layers import text
from jitm.layers.normalization import l2_normalize
from jitm.metrics import Retrieved
from jitm.pages.pictures import pixels_of
from jitm.report import attention_maps, explanations
from jitm.report.attention_maps import is_grid, shown_images, top_regions
from jitm.runs.run import Run
from jitm.serving.images import make_transform
from jitm.types import Images, Texts
from tests.support.matchers import ATTENTION, DIM, MATCHERS, make_inputs, make_scan, make_vse, perturb
from tests.support.runs import write_initial

INPUTS = make_inputs(seed=3, padded=False)
CASES = {
    'scan_t2i': ('t2i',),
    'scan_i2t': ('i2t',),
    'sgr': ('t2i',),
    'dbl': ('t2i',),
    'gsmn': ('t2i', 'i2t'),
    'bfan_equal': ('t2i', 'i2t'),
    'bfan_prob': ('t2i', 'i2t'),
}


def softmax(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def attend(queries, contexts):
    """SCAN's attention in float64: queries [Lq, D], contexts [Lc, D] -> weights [Lq, Lc], rows of sum 1."""
    products = contexts @ queries.T
    products = np.where(products > 0, products, 0.1 * products)
    normalized = products / (np.linalg.norm(products, axis=1, keepdims=True) + 1e-8)
    return softmax(ATTENTION['lambda_softmax'] * normalized.T)


def focus(weights, focal):
    """BFAN's: drops what is below the focal average of each row, and makes the rest sum to 1; equal weights are 0."""
    powers = np.sqrt(weights) if focal == 'bfan_prob' else np.ones_like(weights)
    above = np.einsum('qij,qj->qi', weights[:, :, None] - weights[:, None], powers)
    focused = np.where(above > 0, weights, 0)
    total = focused.sum(axis=1, keepdims=True)
    return focused / np.where(total > 0, total, 1)


def attention(model, variables, images, texts):
    """Returns the encoded regions and words, and the attention between them."""

    def apply(model):
        encoded = model.encode_image(images), model.encode_text(texts)
        return encoded[0].vectors, encoded[1].vectors, model.attention_pairwise(*encoded)

    return jax.tree.map(np.asarray, jax.jit(lambda variables: model.apply(variables, method=apply))(variables))


@pytest.fixture(params=CASES, scope='module')
def case(request):
    model = MATCHERS[request.param]
    variables = jax.jit(model.init)(jax.random.key(0), *INPUTS)
    return request.param, model, {**variables, 'params': perturb(variables['params'])}


@pytest.mark.slow
def test_attention_equals_the_oracle(case):
    name, model, variables = case
    images, texts = INPUTS
    regions, words, got = attention(model, variables, images, texts)
    assert got.keys() == {*CASES[name]}
    for n, (count, length) in enumerate(zip(images.counts, texts.lengths, strict=True)):
        sides = {'i2t': regions[n, :count].astype(np.float64), 't2i': words[n, :length].astype(np.float64)}
        for way, weights in got.items():
            want = attend(sides[way], sides['t2i' if way == 'i2t' else 'i2t'])
            if name.startswith('bfan'):
                want = focus(want, name)
            np.testing.assert_allclose(weights[n, :length, :count], want.T if way == 'i2t' else want, atol=1e-5)
            assert not weights[n, length:].any()
            assert not weights[n, :, count:].any()


def test_retrieve_images_by_hand():
    """Four images with two texts each; ties count against the text."""
    sims = np.zeros((4, 8), np.float32)
    sims[:, 0] = 0.9, 0.1, 0.2, 0.3
    sims[:, 2] = 0.1, 0.4, 0.4, 0.3
    sims[:, 4] = 0.5, 0.7, 0.6, 0.1
    sims[:, 6] = 0.1, 0.2, 0.4, 0.4
    image_of_text = np.repeat(np.arange(4), 2)
    assert explain.retrieve_images(sims, image_of_text, 2) == [
        (0, Retrieved([0, 3, 2, 1], pytest.approx([0.9, 0.3, 0.2, 0.1]), [True, False, False, False], 1)),
        (4, Retrieved([1, 2, 0, 3], pytest.approx([0.7, 0.6, 0.5, 0.1]), [False, True, False, False], 2)),
    ]

    def retrieved(folds):
        return [
            (text, found.top[0], found.rank) for text, found in explain.retrieve_images(sims, image_of_text, 4, folds)
        ]

    assert retrieved(folds=2) == [(0, 0, 1), (2, 1, 1), (4, 2, 1), (6, 2, 2)]
    assert retrieved(folds=1) == [(0, 0, 1), (2, 2, 2), (4, 1, 2), (6, 2, 2)]
    assert [text for text, _ in explain.retrieve_images(sims, image_of_text, 99)] == list(range(8))


CONFIG = {'run': {'memory_mb': 64}, 'evaluation': {'dtype': 'float32', 'precision': 'highest'}}


def make_run(split, make=make_scan, **changes):
    vocabulary = Vocabulary.build(split.captions[1:], min_count=1)
    model = make(text=text.GRUEncoder(len(vocabulary), DIM, 5, bidirectional=True, dropout=0.0), **changes)
    feature_size = split.regions.shape[2]
    images = Images(split.regions[:1], split.counts[:1])
    texts = Texts(np.ones((1, 3), np.int32), np.array([3]))
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    return Run('a_run', 7, 'target', model, variables, vocabulary, CONFIG, feature_size, 'hash')


@pytest.fixture(scope='module')
def split():
    return scenes.load('dev', dev_images=4)


@pytest.fixture(scope='module')
def run(split):
    return make_run(split, direction='t2i', aggregation='Mean')


@pytest.fixture(scope='module')
def report(run, split):
    return explain.describe(
        run, split, [(3, Retrieved([0], [0.5], [True], 1)), (14, Retrieved([1], [0.25], [False], 3))]
    )


@pytest.mark.slow
def test_description_of_pairs(split, report):
    assert {key: report[key] for key in ('data', 'workdir', 'step')} == {
        'data': 'scenes/dev',
        'workdir': 'a_run',
        'step': 7,
    }
    first, second = report['pairs']
    assert first['right']
    assert not second['right']
    keys = ('text', 'image', 'image_id', 'true_image', 'true_image_id', 'rank', 'score')
    assert [second[key] for key in keys] == [14, 1, 'dev-000001', 2, 'dev-000002', 3, 0.25]
    assert second['words'] == ['<start>', *second['caption'].replace(',', ' ,').replace('.', ' .').split(), '<end>']
    assert 'on_true_image' not in first
    for pair, image in ((first, 0), (second, 1), (second | second['on_true_image'], 2)):
        count = split.counts[image]
        np.testing.assert_allclose(pair['boxes'], split.boxes[image, :count], atol=1e-6)
        weights = np.array(pair['attention']['t2i'])
        assert weights.shape == (len(pair['words']), count)
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_description_does_not_depend_on_other_pairs(run, split, report):
    assert len({len(pair['words']) for pair in report['pairs']}) == 2
    for pair in report['pairs']:
        retrieved = Retrieved([pair['image']], [pair['score']], [pair['right']], pair['rank'])
        (alone,) = explain.describe(run, split, [(pair['text'], retrieved)])['pairs']
        np.testing.assert_allclose(alone['attention']['t2i'], pair['attention']['t2i'], atol=2e-6)


@pytest.mark.slow
def test_words_are_tokens_of_the_vocabulary(split):
    run = make_run(split, direction='i2t', aggregation='Mean')
    unknown = split.captions[0].split()[-1].strip('.')
    vocabulary = Vocabulary(tuple(word if word != unknown else 'other' for word in run.vocabulary.words))
    run = dataclasses.replace(run, vocabulary=vocabulary)
    (pair,) = explain.describe(run, split, [(0, Retrieved([3], [0.5], [False], 2))])['pairs']
    assert '<unk>' in pair['words']
    weights = np.array(pair['attention']['i2t'])
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-5)
    images = Images(split.regions[3:], split.counts[3:])
    texts = vocabulary.encode(split.captions[0])[None]
    *_, want = attention(run.model, run.variables, images, Texts(texts, np.array([texts.size])))
    np.testing.assert_allclose(weights, want['i2t'][0, :, : split.counts[3]], atol=2e-6)


class Cells(nn.Module):
    """Encodes the rows of pixels as regions."""

    reads = ('pixels',)

    @nn.compact
    def __call__(self, images, train=False):
        rows = images.pixels.reshape(*images.pixels.shape[:2], -1).astype(np.float32)
        return l2_normalize(nn.Dense(DIM)(rows)), np.ones(rows.shape[:2], bool)


@pytest.mark.slow
def test_words_attend_to_regions_of_pixels(split):
    pixels = dataclasses.replace(split, regions=None, counts=None, boxes=None)
    run = make_run(split, direction='t2i', aggregation='Mean')
    model = run.model.clone(image=Cells())
    texts = Texts(np.ones((1, 3), np.int32), np.array([3]))
    variables = jax.jit(model.init)(jax.random.key(0), Images(pixels=split.pixels[:1]), texts)
    run = dataclasses.replace(run, model=model, variables=variables)
    (pair,) = explain.describe(run, pixels, [(0, Retrieved([0], [0.5], [True], 1))])['pairs']
    assert pair['boxes'] is None
    assert np.shape(pair['attention']['t2i']) == (len(pair['words']), split.pixels.shape[1])


def test_models_without_attention_are_refused(run, split):
    explain.check([run])
    with pytest.raises(UserError, match='needs a single model, but there are 2; give one --workdir'):
        explain.check([run, run])
    with pytest.raises(UserError, match='does not apply to a_run: VSE has no attention of words over regions'):
        explain.check([make_run(split, make_vse().clone)])


PAIR = {
    'caption': 'costs $5 and $6',
    'words': ['<start>', 'costs', '$5', 'and', '$6', '<unk>', '<end>'],
    'verdict': 'retrieved a.jpg, score 0.5, wrong; the right image, b.jpg, is at rank 12',
    'retrieved': [
        {'image': 0, 'image_id': 'a.jpg', 'score': 0.5, 'right': False},
        {'image': 3, 'image_id': 'c.jpg', 'score': 0.25, 'right': True},
    ],
    'boxes': [[0, 0, 0.5, 0.5], [0.25, 0.5, 1, 1]],
    'attention': {
        't2i': [[0.1, 0.9], [0.4, 0.6], [1, 0], [0, 1], [0.5, 0.5], [0, 0], [0.3, 0.7]],
        'i2t': np.full((7, 2), 1 / 7).tolist(),
    },
}


def test_top_regions_by_hand():
    assert top_regions([0.1, 0.4, 0.3, 0.2]) == [1, 2, 3]
    assert top_regions([0.1, 0.6, 0.3]) == [1, 2]
    assert top_regions([0.2] * 5) == [0, 1, 2]
    assert top_regions([0, 0]) == []


def test_words_have_boxes_on_scales_of_their_own():
    shown = attention_maps.shown(PAIR, np.zeros((20, 40, 3), np.uint8))
    words = shown['maps'][0]['words']
    assert [word['text'] for word in words] == PAIR['words'][1:-1]
    assert [len(word['regions']) for word in words] == [2, 1, 1, 2, 0]
    assert words[0]['regions'][0] == 'left: 25.0%; top: 50.0%; width: 75.0%; height: 50.0%; opacity: 1.00'
    assert words[0]['regions'][1].endswith('opacity: 0.67')
    assert [word['first'] for word in words] == [False, True, False, False, False]


def test_cells_of_a_grid_are_a_heat_map_on_the_image():
    attention = {'t2i': [[1, 0, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0], [1, 0, 0, 0]]}
    pair = PAIR | {'words': ['[CLS]', 'a', 'dog', '[SEP]'], 'attention': attention, 'boxes': grid_boxes(4).tolist()}
    (shown,) = attention_maps.shown(pair, np.zeros((20, 40, 3), np.uint8))['maps']
    assert shown['columns'] == 2
    opacities = [[float(region.removeprefix('opacity: ')) for region in word['regions']] for word in shown['words']]
    np.testing.assert_allclose(opacities, [[0, 0, 0.27, 0.8], [0, 0, 0.8, 0]], atol=0.005)
    assert is_grid(grid_boxes(9))
    assert not is_grid(grid_boxes(9)[::-1])
    assert not is_grid(np.array(PAIR['boxes']))


def test_the_right_image_of_a_wrong_retrieval_stands_beside_the_first():
    wrong = [hit | {'right': False} for hit in PAIR['retrieved']]
    pair = PAIR | {'retrieved': wrong, 'true_image': 7, 'true_image_id': 'b.jpg', 'rank': 12}
    results = attention_maps.results(pair, [np.zeros((2, 2, 3), np.uint8)] * 3)
    assert [(result.text, result.rank, result.right) for result in results] == [
        ('a.jpg', 1, False),
        ('b.jpg', 12, True),
        ('c.jpg', 2, False),
    ]
    assert shown_images(PAIR | {'true_image': 3, 'true_image_id': 'c.jpg', 'rank': 2}) == PAIR['retrieved']


@pytest.mark.parametrize(('boxes', 'pixels'), [(PAIR['boxes'], None), (None, np.zeros((4, 4, 3), np.uint8))])
def test_words_without_boxes_are_rows_of_regions(boxes, pixels):
    shown = attention_maps.shown(PAIR | {'boxes': boxes}, pixels)
    assert (shown['picture'], [part['columns'] for part in shown['maps']]) == ('', [2, 2])
    assert shown['maps'][0]['words'][0]['regions'] == ['opacity: 0.67', 'opacity: 1.00']


def test_write_json_and_page(split, report, tmp_path):
    folder = OutputFolder(tmp_path / 'new', EVALUATION)
    path = folder.path / 'explain'
    message = explanations.write(report, split.pixels.__getitem__, folder)
    assert message == f'2 pairs explained in {path / "index.html"}'
    assert json.loads((path / 'explain.json').read_text()) == report
    page = (path / 'index.html').read_text()
    assert page.index(report['pairs'][0]['caption']) < page.index(report['pairs'][1]['caption'])
    assert report['pairs'][1]['verdict'] in page
    assert '<span class="rank">3</span>' in page  # of the right image of the second pair
    maps = 3  # the second pair has one on the right image, too
    assert page.index('The first image') < page.index('The right image, at rank 3')
    assert page.count('src="data:image/png;base64,') == maps + sum(len(shown_images(pair)) for pair in report['pairs'])


def test_photos_of_a_folder_are_shown_as_a_model_sees_them(split, tmp_path):
    for image_id in split.image_ids:
        Image.new('RGB', (40, 20), 'red').save(tmp_path / f'{image_id}.png')
    assert pixels_of(split, 1, tmp_path).shape == (20, 40, 3)
    assert pixels_of(split, 1, tmp_path, make_transform(16, {}).evaluate).shape == (16, 16, 3)


SCAN = {'name': 'scan.SCAN', 'direction': 't2i', 'aggregation': 'Mean', 'lambda_softmax': 9.0, 'lambda_lse': 6.0}


@pytest.mark.slow
def test_command_explains(tiny_config, tmp_path, capsys):
    model = {key: tiny_config['model'][key] for key in ('embed_dim', 'image', 'text')} | SCAN
    write_initial(tiny_config | {'model': model}, tmp_path / 'run')
    capsys.readouterr()
    assert cli.main(['eval', f'--workdir={tmp_path / "run"}', '--explain=2', '--save_sims']) == 0
    folder = tmp_path / 'run' / 'eval' / 'dev'
    assert f'2 pairs explained in {folder / "explain" / "index.html"}' in capsys.readouterr().out
    pairs = json.loads((folder / 'explain' / 'explain.json').read_text())['pairs']
    sims = np.load(folder / 'sims.npy')
    assert [pair['text'] for pair in pairs] == [0, 25]
    assert [pair['image'] for pair in pairs] == np.argmax(sims, axis=0)[[0, 25]].tolist()
    assert (folder / 'explain' / 'index.html').exists()
    assert not (folder / UNFINISHED).exists()
