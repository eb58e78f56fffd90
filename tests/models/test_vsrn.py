"""VSRN: its captioner against the formulas in float64, and its token term on the way into a run."""

import chex
import jax
import numpy as np
import pytest

from jitm.data.text.word_level import END
from jitm.errors import UserError
from jitm.layers.captioning import Captioner, next_words
from jitm.losses import tokens
from jitm.models import vsrn
from jitm.training.source import together
from jitm.training.step import score_in_training
from jitm.types import Batch, Images, Texts
from tests.support.gru import affine, sigmoid, torch_gru
from tests.support.matchers import MATCHERS, VSRN, make_inputs, make_vse, perturb
from tests.support.steps import CAPTION, in_batch_source, make_terms, on_one_device, predictions_source

LAYOUTS = ['vsrn_f30k', 'vsrn_coco']


def gru_step(p, state, x):
    r = sigmoid(affine(p['input_reset'], x) + affine(p['hidden_reset'], state))
    z = sigmoid(affine(p['input_update'], x) + affine(p['hidden_update'], state))
    n = np.tanh(affine(p['input_new'], x) + r * affine(p['hidden_new'], state))
    return (1 - z) * n + z * state


def caption_loss(p, regions, ids, max_length):
    """One caption's loss by the rules of the released code: labels of max_length + 1, a mask up to the first pad."""
    ids = list(ids)
    if len(ids) > max_length - 1:
        ids = ids[:max_length]
        ids[-1] = END
    labels = ids + [0] * (max_length + 1 - len(ids))
    mask = [t <= labels.index(0) for t in range(max_length + 1)]
    read = torch_gru(p['encoder']['forward'], affine(p['region_fc'], regions), len(regions), backward=False)
    state = read[-1]
    total = 0.0
    for t in range(max_length - 1):
        energies = [
            float(
                affine(p['decoder']['energy'], np.tanh(affine(p['key'], r) + affine(p['decoder']['query'], state)))[0]
            )
            for r in read
        ]
        weights = np.exp(energies) / np.exp(energies).sum()
        context = sum(w * r for w, r in zip(weights, read, strict=True))
        state = gru_step(p['decoder']['gru'], state, np.concatenate([p['embedding']['embedding'][labels[t]], context]))
        logits = affine(p['word_fc'], state)
        total += mask[t + 1] * (np.log(np.exp(logits).sum()) - logits[labels[t + 1]])
    return total


def make_pairs(seed=0):
    """Images of 1 to 4 regions and texts of 2 to 6 words, from `<start>` to `<end>`; caption_length is 5."""
    images, texts = make_inputs(seed=seed, padded=False)
    images = images.replace(counts=np.array([4, 1, 3, 2, 4], np.int32))
    lengths = np.array([6, 2, 5, 4, 3], np.int32)
    ids = np.random.default_rng(seed).integers(3, VSRN['vocab_size'], texts.ids.shape).astype(np.int32)
    ids[:, 0] = 1
    ids[np.arange(5), lengths - 1] = END
    return images, Texts(np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, 0), lengths)


def run(model, variables, images, texts):
    """Scores in training, each pair's caption loss (nothing dropped out), and the batch statistics afterwards."""

    def compute(model):
        encoded = model.encode_image(images, True)
        p = model.predict_tokens(encoded, texts)['captioning']
        scores = model.similarity(encoded, model.encode_text(texts, True), True)
        return scores, tokens.captioning(p.logits, p.labels, p.mask)

    apply = jax.jit(lambda variables: model.apply(variables, method=compute, mutable=['batch_stats']))
    (scores, losses), changed = apply(variables)
    return scores, losses, changed['batch_stats']


@pytest.fixture(params=LAYOUTS, scope='module')
def matcher(request):
    model = MATCHERS[request.param]
    variables = jax.jit(model.init)(jax.random.key(0), *make_pairs())
    statistics = jax.tree.map(np.abs, perturb(variables['batch_stats']))
    return model, {'params': perturb(variables['params']), 'batch_stats': statistics}


@pytest.mark.slow
def test_the_captioner_is_its_formulas_in_float64(matcher):
    model, variables = matcher
    images, texts = make_pairs()
    _, losses, _ = run(model, variables, images, texts)
    encoded, _ = model.apply(variables, images, True, method='encode_image', mutable=['batch_stats'])
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params']['captioner'])
    pairs = zip(encoded['regions'], images.counts, texts.ids, texts.lengths, strict=True)
    want = [caption_loss(p, regions[:r], ids[:n], model.caption_length) for regions, r, ids, n in pairs]
    np.testing.assert_allclose(losses, want, rtol=2e-6)


@pytest.mark.slow
def test_padding_is_invisible_in_training_too(matcher):
    model, variables = matcher
    images, texts = make_pairs()
    want = run(model, variables, images, texts)
    regions = np.pad(images.regions, [(0, 0), (0, 3), (0, 0)])
    regions[np.arange(regions.shape[1]) >= images.counts[:, None]] = 1e3
    ids = np.pad(texts.ids, [(0, 0), (0, 4)])
    ids[np.arange(ids.shape[1]) >= texts.lengths[:, None]] = 3
    got = run(model, variables, Images(regions, images.counts), Texts(ids, texts.lengths))
    chex.assert_trees_all_close(got, want, atol=2e-6)


def test_a_padding_follows_the_longest_text_of_a_batch_too():
    texts = Texts(np.array([[1, 7, 2], [1, 2, 0]], np.int32), np.array([3, 2], np.int32))
    words, labels, mask = next_words(texts, 60, END)
    np.testing.assert_array_equal(words, [[1, 7, 2], [1, 2, 0]])
    np.testing.assert_array_equal(labels, [[7, 2, 0], [2, 0, 0]])
    np.testing.assert_array_equal(mask, [[True] * 3, [True, True, False]])


def test_captions_are_cut_as_released():
    ids = np.array([[1, 5, 6, 7, 8, 2], [1, 5, 6, 7, 2, 0], [1, 5, 6, 2, 0, 0]], np.int32)
    words, labels, mask = next_words(Texts(ids, np.array([6, 5, 4], np.int32)), 5, END)
    np.testing.assert_array_equal(words, [[1, 5, 6, 7], [1, 5, 6, 7], [1, 5, 6, 2]])
    np.testing.assert_array_equal(labels, [[5, 6, 7, 2], [5, 6, 7, 2], [5, 6, 2, 0]])
    assert mask.all()


@pytest.mark.slow
def test_graph_is_initialized_as_identity():
    """The scale of every graph layer's BatchNorm is zero at first."""
    images, texts = make_pairs()
    model = MATCHERS['vsrn_coco'].clone(caption=False)
    variables = jax.jit(model.init)(jax.random.key(0), images, texts)
    layers = variables['params']['graph_0'], variables['params']['graph_1']
    assert all(not np.any(layer['norm']['scale']) and not np.any(layer['norm']['bias']) for layer in layers)
    encoded, without = (
        jax.jit(lambda images, model=model: model.apply(variables, images, method='encode_image'))(images)
        for model in (model, model.clone(graph_layers=0))
    )
    np.testing.assert_array_equal(model.vectors(encoded), model.vectors(without))


@pytest.mark.slow
def test_is_initialised_as_released():
    model = vsrn.VSRN(**VSRN | {'vocab_size': 500, 'embed_dim': 64, 'word_dim': 20, 'caption_dim': 100})
    params = jax.jit(model.init)(jax.random.key(0), *make_pairs())['params']
    captioner = params['captioner']
    uniform = {
        'theta': (params['graph_0']['theta'], 64),
        'w': (params['graph_1']['w'], 64),
        'key': (captioner['key'], 200),
        'query': (captioner['decoder']['query'], 200),
        'energy': (captioner['decoder']['energy'], 100),
    }
    for name, (layer, fan_in) in uniform.items():
        for leaf in layer.values():
            assert 0.9 * fan_in**-0.5 < np.abs(leaf).max() <= fan_in**-0.5, name
    for name, fan_in, fan_out in (('region_fc', 64, 100), ('word_fc', 100, 500)):
        np.testing.assert_allclose(np.std(captioner[name]['kernel']), (2 / (fan_in + fan_out)) ** 0.5, rtol=0.05)
        assert 0.9 * fan_in**-0.5 < np.abs(captioner[name]['bias']).max() <= fan_in**-0.5, name
    np.testing.assert_allclose(np.std(captioner['embedding']['embedding']), 1, rtol=0.05)
    assert np.abs(params['text']['embedding']['embedding']).max() <= 0.1
    np.testing.assert_allclose(np.abs(params['image_fc']['kernel']).max(), (6 / 70) ** 0.5, rtol=0.05)


@pytest.mark.slow
def test_evaluation_keeps_the_image_vector_only(matcher):
    model, variables = matcher
    images, _ = make_pairs()
    assert set(model.apply(variables, images, method='encode_image')) == {'vector'}


def captioned(rate):
    """A captioner's logits, a function of its parameters, what it reads, and the key of its dropout if it is to."""
    captioner = Captioner(vocab_size=9, word_dim=5, features=6, dropout=rate)
    counts = np.array([3, 2], np.int32)
    params = jax.jit(captioner.init)(jax.random.key(0), np.zeros((2, 3, 4)), counts, np.zeros((2, 4), int))['params']

    def logits(params, regions, words, key=None):
        rngs = None if key is None else {'dropout': jax.random.key(key)}
        return captioner.apply({'params': params}, regions, counts, words, key is not None, rngs=rngs)

    return params, jax.jit(logits, static_argnums=3)


REGIONS = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
WORDS = np.full((2, 4), 3, np.int32)


@pytest.mark.slow
def test_all_that_the_captioner_reads_is_dropped_out():
    params, logits = captioned(rate=1.0)
    for regions, words in ((REGIONS + 1, WORDS), (REGIONS, WORDS + 1)):
        assert not np.allclose(logits(params, regions, words), logits(params, REGIONS, WORDS))
        np.testing.assert_array_equal(logits(params, regions, words, 0), logits(params, REGIONS, WORDS, 0))


@pytest.mark.slow
def test_the_captioner_drops_out_anew_at_each_word():
    params, logits = captioned(rate=0.5)
    # A decoder without memory: each of the equal words gives the same, but for what is dropped out.
    decoder = jax.tree.map(np.zeros_like, params['decoder'])
    decoder['gru']['input_new'] = params['decoder']['gru']['input_new']
    decoder['gru']['input_update']['bias'] -= 100
    params = params | {'decoder': decoder}
    kept, dropped, again = (np.asarray(logits(params, REGIONS, WORDS, key)) for key in (None, 0, 1))
    np.testing.assert_allclose(kept, np.repeat(kept[:, :1], 4, axis=1), atol=1e-6)
    for one, other in ((0, 1), (1, 2), (2, 3)):
        assert not np.allclose(dropped[:, one], dropped[:, other])
    assert not np.allclose(dropped, again)


def test_the_captioner_runs_for_a_token_term_only(monkeypatch):
    model = MATCHERS['vsrn_f30k']
    (images, texts) = make_pairs()
    variables = jax.eval_shape(lambda key: model.init(key, images, texts), jax.random.key(0))
    batch = Batch(np.int32(0), images, texts, np.arange(5))

    terms = make_terms({'caption': CAPTION})

    def shapes(*sources):
        def run(v, k):
            return score_in_training(together(*sources), model, v, batch, None, k)

        return jax.eval_shape(on_one_device(run), variables, jax.random.key(0))

    ranked = in_batch_source()
    captioned = predictions_source(**terms)
    outputs = shapes(ranked, captioned)
    assert (outputs[0]['i2t'].scores.shape, outputs[1]['caption'].shape) == ((5, 5), (5,))
    assert set(outputs[2]) == {'graph_0', 'graph_1', 'norm'}

    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(vsrn.VSRN, 'predict_tokens', refuse)
    assert shapes(ranked)[1] == {}
    with pytest.raises(AssertionError):
        shapes(ranked, captioned)


@pytest.mark.parametrize('model', [vsrn.VSRN(**VSRN | {'caption': False}), make_vse()])
def test_a_caption_term_needs_a_model_that_writes_captions(model):
    images, texts = make_pairs()
    batch = Batch(np.int32(0), images, texts, np.arange(5))
    source = predictions_source(**make_terms({'caption': CAPTION}))

    def run(key):
        variables = model.init(key, images, texts)
        return score_in_training(source, model, variables, batch, None, key)

    with pytest.raises(UserError, match=r"'terms.caption' needs predictions for 'captioning', which \w+ as configured"):
        jax.eval_shape(on_one_device(run), jax.random.key(0))


def test_without_captioner_there_are_no_parameters_for_it():
    model = vsrn.VSRN(**VSRN | {'caption': False})
    variables = jax.eval_shape(lambda key: model.init(key, *make_pairs()), jax.random.key(0))
    assert 'captioner' not in variables['params']
