"""Which attention is shown, of which pairs, and how: against the oracle, by hand, and from a user's command."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

from jitm.analysis.attention import draw, top_regions
from jitm.data import scenes
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.evaluation import explain
from jitm.evaluation.explain import Retrieved
from jitm.layers import text
from jitm.runs.run import Run
from jitm.types import Images, Texts
from tests.conftest import TINY, TINY_FILE, run_script
from tests.models import cross_attention_oracle as oracle
from tests.models.test_matchers import ATTENTION, DIM, MATCHERS, make_inputs, make_scan, make_vse, perturb

OPTIONS = {'softmax_temperature': ATTENTION['lambda_softmax'], 'slope': ATTENTION['slope']}
ORACLES = {
    'scan_t2i': lambda V, W: {'t2i': oracle.scan_attention(V, W, direction='t2i', **OPTIONS)},
    'scan_i2t': lambda V, W: {'i2t': oracle.scan_attention(V, W, direction='i2t', **OPTIONS)},
    'sgr': lambda V, W: {'t2i': oracle.scan_attention(V, W, **OPTIONS)},
    'dbl': lambda V, W: {'t2i': oracle.scan_attention(V, W, **OPTIONS)},
    'bfan_equal': lambda V, W: dict(
        zip(('t2i', 'i2t'), oracle.bfan_attention(V, W, focal='equal', **OPTIONS), strict=True)
    ),
    'bfan_prob': lambda V, W: dict(
        zip(('t2i', 'i2t'), oracle.bfan_attention(V, W, focal='prob', **OPTIONS), strict=True)
    ),
}


def attention(model, variables, images, texts):
    """The encodings' vectors of both sides, and the attention between them."""

    def apply(model):
        encoded = model.encode_image(images), model.encode_text(texts)
        return encoded[0].vectors, encoded[1].vectors, model.attention_pairwise(*encoded)

    return jax.tree.map(np.asarray, jax.jit(lambda variables: model.apply(variables, method=apply))(variables))


@pytest.fixture(params=ORACLES, scope='module')
def case(request):
    model = MATCHERS[request.param]
    variables = jax.jit(model.init)(jax.random.key(0), *make_inputs())
    return model, {**variables, 'params': perturb(variables['params'])}, ORACLES[request.param]


def test_attention_is_the_oracles_and_padding_has_none(case):
    model, variables, expected = case
    images, texts = make_inputs()
    regions, words, got = attention(model, variables, images, texts)
    for n, (count, length) in enumerate(zip(images.counts, texts.lengths, strict=True)):
        want = expected(regions[n, :count].astype(np.float64), words[n, :length].astype(np.float64))
        assert got.keys() == want.keys()
        for name, weights in want.items():
            np.testing.assert_allclose(got[name][n, :length, :count], weights, atol=1e-5)
            assert not got[name][n, length:].any()
            assert not got[name][n, :, count:].any()


def test_more_padding_changes_nothing(case):
    model, variables, _ = case
    images, texts = make_inputs()
    *_, want = attention(model, variables, images, texts)
    images = Images(np.pad(images.regions, [(0, 0), (0, 3), (0, 0)], constant_values=7), images.counts)
    texts = Texts(np.pad(texts.ids, [(0, 0), (0, 2)], constant_values=3), texts.lengths)
    *_, got = attention(model, variables, images, texts)
    for name in want:
        np.testing.assert_allclose(got[name][:, :-2, :-3], want[name], atol=1e-6)
        assert not got[name][:, -2:].any()
        assert not got[name][:, :, -3:].any()


def test_the_best_image_of_evenly_spread_texts_is_retrieved():
    """Four images, two texts each; a tie counts against the text."""
    sims = np.zeros((4, 8), np.float32)
    sims[:, 0] = 0.9, 0.1, 0.2, 0.3
    sims[:, 2] = 0.1, 0.4, 0.4, 0.3
    sims[:, 4] = 0.5, 0.7, 0.6, 0.1
    sims[:, 6] = 0.1, 0.2, 0.4, 0.4
    image_of_text = np.repeat(np.arange(4), 2)
    assert explain.retrieve(sims, image_of_text, 2) == [
        Retrieved(text=0, image=0, rank=1, score=pytest.approx(0.9)),
        Retrieved(text=4, image=1, rank=2, score=pytest.approx(0.7)),
    ]
    in_folds = explain.retrieve(sims, image_of_text, 4, folds=2)
    assert [(pair.text, pair.image, pair.rank) for pair in in_folds] == [(0, 0, 1), (2, 1, 1), (4, 2, 1), (6, 2, 2)]
    everywhere = explain.retrieve(sims, image_of_text, 4)
    assert [(pair.text, pair.image, pair.rank) for pair in everywhere] == [(0, 0, 1), (2, 2, 2), (4, 1, 2), (6, 2, 2)]
    assert [pair.text for pair in explain.retrieve(sims, image_of_text, 99)] == list(range(8))


def make_run(split, make=make_scan, **changes):
    vocabulary = Vocabulary.build(split.captions[1:], min_count=1)
    model = make(text=text.GRUEncoder(len(vocabulary), DIM, 5, bidirectional=True, dropout=0.0), **changes)
    feature_size = split.regions.shape[2]
    images, texts = Images(split.regions[:1], split.counts[:1]), Texts(np.ones((1, 3), np.int32), np.array([3]))
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    return Run('a_run', 7, 'target', model, variables, vocabulary, {}, feature_size, 'hash')


@pytest.fixture(scope='module')
def split():
    return scenes.load('dev', dev_images=4)


@pytest.fixture(scope='module')
def run(split):
    return make_run(split, direction='t2i', aggregation='Mean')


@pytest.fixture(scope='module')
def report(run, split):
    return explain.describe(run, split, [Retrieved(3, 0, 1, 0.5), Retrieved(14, 1, 3, 0.25)])


def test_a_pair_is_described(split, report):
    assert {key: report[key] for key in ('data', 'workdir', 'step')} == {
        'data': 'scenes/dev',
        'workdir': 'a_run',
        'step': 7,
    }
    first, second = report['pairs']
    assert first['right']
    assert not second['right']
    told = ('text', 'image', 'image_id', 'true_image', 'true_image_id', 'rank', 'score')
    assert [second[key] for key in told] == [14, 1, 'dev-000001', 2, 'dev-000002', 3, 0.25]
    assert second['words'] == ['<start>', *second['caption'].replace(',', ' ,').replace('.', ' .').split(), '<end>']
    for pair in (first, second):
        count = split.counts[pair['image']]
        np.testing.assert_allclose(pair['boxes'], split.boxes[pair['image'], :count], atol=1e-6)
        weights = np.array(pair['attention']['t2i'])
        assert weights.shape == (len(pair['words']), count)
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


def test_a_pair_is_described_alike_in_other_company(run, split, report):
    first, second = report['pairs']
    assert len(first['words']) != len(second['words'])
    for pair in (first, second):
        retrieved = Retrieved(pair['text'], pair['image'], pair['rank'], pair['score'])
        (alone,) = explain.describe(run, split, [retrieved])['pairs']
        np.testing.assert_allclose(alone['attention']['t2i'], pair['attention']['t2i'], atol=2e-6)


def test_words_are_those_the_model_reads(split):
    run = make_run(split, direction='i2t', aggregation='Mean')
    unknown = split.captions[0].split()[-1].strip('.')
    vocabulary = Vocabulary(tuple(word if word != unknown else 'other' for word in run.vocabulary.words))
    run = dataclasses.replace(run, vocabulary=vocabulary)
    (pair,) = explain.describe(run, split, [Retrieved(0, 3, 2, 0.5)])['pairs']
    assert '<unk>' in pair['words']
    weights = np.array(pair['attention']['i2t'])
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-5)
    images, texts = Images(split.regions[3:], split.counts[3:]), vocabulary.encode(split.captions[0])[None]
    *_, want = attention(run.model, run.variables, images, Texts(texts, np.array([texts.size])))
    np.testing.assert_allclose(weights, want['i2t'][0, :, : split.counts[3]], atol=2e-6)


def test_what_has_no_attention_to_show_is_refused(run, split):
    explain.check([run])
    with pytest.raises(UserError, match='of one model, but there are 2; give one --workdir'):
        explain.check([run, run])
    with pytest.raises(
        UserError, match='--explain does not apply to a_run: VSE has no attention of words over regions'
    ):
        explain.check([make_run(split, make_vse().clone)])


PAIR = {
    'caption': 'costs $5 and $6',
    'words': ['<start>', 'costs', '$5', 'and', '$6', '<unk>', '<end>'],
    'verdict': 'retrieved a.jpg, score 0.5, wrong: b.jpg comes at rank 12',
    'boxes': [[0, 0, 0.5, 0.5], [0.25, 0.5, 1, 1]],
    'attention': {
        't2i': [[0.1, 0.9], [0.4, 0.6], [1, 0], [0, 1], [0.5, 0.5], [0, 0], [0.3, 0.7]],
        'i2t': np.full((7, 2), 1 / 7).tolist(),
    },
}


def test_boxes_of_the_regions_with_most_attention():
    assert top_regions([0.1, 0.4, 0.3, 0.2]) == [1, 2, 3]
    assert top_regions([0.1, 0.6, 0.3]) == [1, 2]
    assert top_regions([0.2] * 5) == [0, 1, 2]
    assert top_regions([0, 0]) == []


def test_each_word_has_a_panel_with_its_boxes():
    figure = draw(PAIR, np.zeros((20, 40, 3), np.uint8))
    figure.canvas.draw()
    panels = [panel for panel in figure.axes if panel.images]
    assert [panel.get_title() for panel in panels] == 2 * PAIR['words']
    assert [len(panel.patches) for panel in panels] == [1, 2, 1, 1, 2, 0, 1, *7 * [2]]
    assert [panel.get_xlabel() for panel in panels[:7]] == [
        *('0.90', '0.60  0.40', '1.00', '1.00', '0.50  0.50', 'none', '0.70')
    ]
    (box,) = panels[0].patches
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((10, 10), 30, 10)
    assert figure.get_suptitle() == 'costs $5 and $6\nretrieved a.jpg, score 0.5, wrong: b.jpg comes at rank 12'


@pytest.mark.parametrize(
    ('boxes', 'pixels'), [(PAIR['boxes'], None), (None, None), (None, np.zeros((4, 4, 3), np.uint8))]
)
def test_without_pixels_or_boxes_there_is_a_map(boxes, pixels):
    figure = draw(PAIR | {'boxes': boxes}, pixels)
    figure.canvas.draw()
    maps = [panel for panel in figure.axes if panel.images]
    assert len(maps) == 2
    for panel, weights in zip(maps, PAIR['attention'].values(), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), weights)
        assert [label.get_text() for label in panel.get_yticklabels()] == PAIR['words']


def test_json_and_a_picture_of_each_pair_are_written(split, report, tmp_path):
    assert explain.write(report, split.pixels, tmp_path / 'new') == f'2 pairs explained in {tmp_path / "new"}'
    assert json.loads((tmp_path / 'new' / 'explain.json').read_text()) == report
    assert {path.name for path in (tmp_path / 'new').glob('*.png')} == {'00.png', '01.png'}
    assert (tmp_path / 'new' / '01.png').read_bytes().startswith(b'\x89PNG')


def test_json_is_written_without_the_drawing_library(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert explain.write(report, None, tmp_path).endswith('for pictures of them, pip install matplotlib')
    assert [path.name for path in tmp_path.iterdir()] == ['explain.json']


SCAN = """
def with_attention(tiny_config):
    config = tiny_config()
    config.model = {{
        'name': 'scan.SCAN', 'embed_dim': 16, 'direction': 't2i', 'raw_feature_norm': 'clipped_l2norm', 'slope': 0.1,
        'lambda_softmax': 9.0, 'aggregation': 'Mean', 'lambda_lse': 6.0, 'image': config.model.image.to_dict(),
        'text': config.model.text.to_dict(),
    }}
    return config

tiny_config = get_config
get_config = lambda: with_attention(tiny_config)
"""


@pytest.mark.slow
def test_the_command_explains(tmp_path):
    (tmp_path / 'config.py').write_text((TINY_FILE + SCAN).format(tiny=TINY | {'epochs': 1}))
    result = run_script('train.py', '--config', tmp_path / 'config.py', '--workdir', tmp_path / 'run')
    assert result.returncode == 0, result.stderr
    result = run_script('eval.py', '--workdir', tmp_path / 'run', '--explain', 2, '--save_sims')
    assert result.returncode == 0, result.stderr
    folder = tmp_path / 'run' / 'eval' / 'dev'
    assert f'2 pairs explained in {folder / "explain"}' in result.stdout
    pairs = json.loads((folder / 'explain' / 'explain.json').read_text())['pairs']
    sims = np.load(folder / 'sims.npy')
    assert [pair['text'] for pair in pairs] == [0, 25]
    assert [pair['image'] for pair in pairs] == np.argmax(sims, axis=0)[[0, 25]].tolist()
    assert (folder / 'explain' / '01.png').exists()
    assert not (folder / 'blocks').exists()
