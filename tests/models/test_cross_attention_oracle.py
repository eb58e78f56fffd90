"""The oracle of the cross-attention models against numbers worked out by hand, and against what must not matter."""

import numpy as np
import pytest

from tests.models import cross_attention_oracle as oracle

REGIONS = np.eye(2)
WORDS = np.array([[0.8, 0.6], [0.6, -0.8]])  # so that WORDS are the raw similarities [word, region] as well
CLIPPED = np.sqrt(0.6**2 + 0.08**2)  # of (0.6, -0.8) after LeakyReLU(0.1)
RNG = np.random.default_rng(0)
IMAGES = [RNG.normal(size=(r, 3)) for r in (4, 3, 4)]
CAPTIONS = [RNG.normal(size=(n, 3)) for n in (5, 2, 3)]
V, W = IMAGES[0], CAPTIONS[0]
PARAMS = oracle.random_params(RNG, features=3, size=4, slots=4)
TIGHT = {'rtol': 0, 'atol': 1e-7}  # the guards of the divisions are 1e-8


def logistic(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


UNIT_IMAGES, UNIT_CAPTIONS = [unit(x) for x in IMAGES], [unit(x) for x in CAPTIONS]

# The normalised similarities by hand. t2i: each column over the words. i2t: each row over the regions.
BY_HAND = {
    't2i': [[0.8, 0.6 / CLIPPED], [0.6, -0.08 / CLIPPED]],
    'i2t': [[0.8, 0.6], [0.6 / CLIPPED, -0.08 / CLIPPED]],
}


@pytest.mark.parametrize('direction', BY_HAND)
def test_scan_by_hand(direction):
    similarity = np.array(BY_HAND[direction])
    options = {'direction': direction, 'softmax_temperature': 3}
    if direction == 't2i':
        first = logistic(3 * (similarity[:, 0] - similarity[:, 1]))  # weight of region 0 for each word
        weights = np.stack([first, 1 - first], axis=1)
        relevance = (np.array([0.8, 0.6]) * first + np.array([0.6, -0.8]) * (1 - first)) / np.hypot(first, 1 - first)
    else:
        first = logistic(3 * (similarity[0] - similarity[1]))  # weight of word 0 for each region
        weights = np.stack([first, 1 - first])
        attended = first[:, None] * WORDS[0] + (1 - first[:, None]) * WORDS[1]  # of length as above: orthonormal words
        relevance = np.diag(attended) / np.hypot(first, 1 - first)
    np.testing.assert_allclose(oracle.scan_attention(REGIONS, WORDS, **options), weights, **TIGHT)
    a, b = relevance
    for aggregation, want in (('Mean', (a + b) / 2), ('Sum', a + b), ('Max', max(a, b))):
        score = oracle.scan_score(REGIONS, WORDS, aggregation=aggregation, **options)
        np.testing.assert_allclose(score, want, **TIGHT)
    score = oracle.scan_score(REGIONS, WORDS, lse_temperature=2, **options)
    np.testing.assert_allclose(score, np.log(np.exp(2 * a) + np.exp(2 * b)) / 2, **TIGHT)


def test_scan_of_one_word_on_its_own_region():
    """Word e1: the columns become (1, 0), the weights 3/4 and 1/4 at temperature ln 3, the cosine 3 / sqrt(10)."""
    score = oracle.scan_score(REGIONS, REGIONS[:1], softmax_temperature=np.log(3), aggregation='Mean')
    np.testing.assert_allclose(score, 3 / np.sqrt(10), **TIGHT)


def test_focal_weights_by_hand():
    """What is above 1/3, or above sum x^1.5 / sum x^0.5 = 0.341 and 0.340."""
    x = np.array([0.42, 0.335, 0.245])
    np.testing.assert_allclose(oracle.focal_weights(x, 'equal'), [0.42 / 0.755, 0.335 / 0.755, 0])
    np.testing.assert_allclose(oracle.focal_weights(x, 'prob'), [1, 0, 0])
    x = np.array([0.41, 0.345, 0.245])
    np.testing.assert_allclose(oracle.focal_weights(x, 'prob'), [0.41 / 0.755, 0.345 / 0.755, 0])


@pytest.mark.parametrize('focal', ['equal', 'prob'])
@pytest.mark.parametrize('length', [1, 3, 7, 10])
def test_a_uniform_row_keeps_nothing(focal, length):
    assert not oracle.focal_weights(np.full(length, 1 / length), focal).any()


@pytest.mark.parametrize('focal', ['equal', 'prob'])
def test_bfan_by_hand(focal):
    """Of two contexts the larger is kept: words choose regions 1 and 0, regions words 1 and 0, all with cosine 0.6."""
    np.testing.assert_allclose(oracle.bfan_score(REGIONS, WORDS, focal=focal), 1.2, **TIGHT)
    t2i, i2t = oracle.bfan_attention(REGIONS, WORDS, focal=focal)
    np.testing.assert_array_equal(t2i, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(i2t, [[0, 1], [1, 0]])


def test_bfan_with_one_region_has_only_what_the_region_sees():
    """Similarities 0.8 and 0.6: no word has a choice, and the region keeps word 0."""
    np.testing.assert_allclose(oracle.bfan_score(REGIONS[:1], WORDS), 0.8, **TIGHT)


def identity_params(scale=1.0):
    """D = M = 2: linear layers are the identity, and normalisations multiply by `scale`."""
    params = {}
    for key, value in oracle.random_params(RNG, features=2, size=2, slots=2).items():
        params[key] = np.eye(*value.shape) if key.endswith('kernel') else np.zeros_like(value)
        if key.endswith('variance'):
            params[key] += 1 - 1e-5
        if key.endswith('scale'):
            params[key] += scale
    return params


def test_global_vectors_by_hand():
    """Logits ln 3 and 0, made through the last kernel, weigh the vectors 3 to 1."""
    params = identity_params()
    logit = np.tanh(1) * np.tanh(0.5)
    params['image_common/kernel'] = params['text_common/kernel'] = np.array([[np.log(3) / logit], [0.0]])
    np.testing.assert_allclose(oracle.image_global(REGIONS, params), np.array([3, 1]) / np.sqrt(10), **TIGHT)
    np.testing.assert_allclose(oracle.text_global(REGIONS, params), np.array([3, 1]) / np.sqrt(10), **TIGHT)

    params['image_local_norm/mean'] = np.array([0.2, 9])  # per region slot: the local vector of region 0 has 0.8, -0.2
    params['image_local_norm/variance'] = np.array([4 - 1e-5, 1])
    params['image_local_norm/bias'] = np.array([0.1, 9])
    params['image_global_norm/mean'] = np.array([0.1, 0])  # per feature: 0.5 becomes 3 * 0.4 / 2 + 0.2
    params['image_global_norm/scale'] = np.array([3.0, 1])
    params['image_global_norm/variance'] = np.array([4 - 1e-5, 1])
    params['image_global_norm/bias'] = np.array([0.2, 0])
    params['image_local_norm/scale'][1] = 0  # and region 1 has tanh(9) everywhere
    logits = np.log(3) / logit * np.array([np.tanh(0.8 / 2 + 0.1), np.tanh(9)]) * np.tanh(0.8)
    first = logistic(logits[0] - logits[1])
    want = np.array([first, 1 - first]) / np.hypot(first, 1 - first)
    np.testing.assert_allclose(oracle.image_global(REGIONS, params), want, **TIGHT)
    np.testing.assert_allclose(oracle.text_global(REGIONS, params), np.array([3, 1]) / np.sqrt(10), **TIGHT)


def test_alignments_by_hand():
    similarity = np.array(BY_HAND['t2i'])
    first = logistic(9 * (similarity[:, 0] - similarity[:, 1]))
    attended = np.stack([first, 1 - first], axis=1)
    params = identity_params()
    params['local_alignment/bias'] = np.array([0, 0.1])
    params['global_alignment/kernel'] = np.array([[1.0, 1], [0, 1]])
    got = oracle.alignments(REGIONS, WORDS, np.array([1, 0]), np.array([0, 2]), params)
    np.testing.assert_allclose(got[0], np.array([1, 5]) / np.sqrt(26), **TIGHT)
    np.testing.assert_allclose(got[1:], unit((unit(attended) - WORDS) ** 2 + [0, 0.1]), **TIGHT)


def test_sgr_reasoning_by_hand():
    """Nodes 1 and -1 with M = 1: the softmax of +-c averages them to +-tanh(c), and the negative one is cut to 0."""
    names = [f'graph_{step}_{part}' for step in range(3) for part in ('query', 'key', 'update')]
    kernels = [2, 0.5, 3, 0.7, 1, 0.9, 1.1, -0.6, 2]
    params = {f'{name}/kernel': np.array([[float(k)]]) for name, k in zip(names, kernels, strict=True)}
    params |= {f'{name}/bias': np.zeros(1) for name in names}
    params |= {'graph_2_query/bias': np.array([0.3]), 'score/kernel': np.array([[0.5]]), 'score/bias': np.array([-1.0])}
    x = 3 * np.tanh(1)  # c = query * key = 1
    x, y = 0.9 * logistic(0.7 * x**2) * x, 0.9 * 0.5 * x  # node 1 is 0, asks for nothing, and weighs all alike
    first = logistic((1.1 * x + 0.3) * -0.6 * (x - y))
    x = 2 * (first * x + (1 - first) * y)
    score = oracle.sgr_readout(np.array([[1.0], [-1.0]]), params)
    np.testing.assert_allclose(score, logistic(0.5 * x - 1), **TIGHT)
    score = oracle.sgr_readout(np.array([[-1.0], [-1.0]]), params)  # negative everywhere: cut to 0
    np.testing.assert_allclose(score, logistic(-1), **TIGHT)


def test_saf_filter_by_hand():
    """Gates 3/4 and 1/2 of two orthogonal nodes."""
    params = identity_params(scale=2)
    params['filter/kernel'] = np.array([[3 + np.log(3)], [3]])
    params['score/kernel'] = np.array([[2.0], [1]])
    args = (np.eye(2), params, 3.0, 4 - 1e-5)
    np.testing.assert_allclose(oracle.saf_weights(*args), [0.6, 0.4], **TIGHT)
    np.testing.assert_allclose(oracle.saf_readout(*args), logistic(8 / np.sqrt(13)), **TIGHT)


def test_sgr_and_saf_join_their_parts():
    nodes = [*oracle.local_alignments(V, W, PARAMS, softmax_temperature=5)]
    vectors = oracle.image_global(V, PARAMS), oracle.text_global(W, PARAMS)
    nodes = np.array([oracle.global_alignment(*vectors, PARAMS), *nodes])
    options = {'softmax_temperature': 5}
    assert oracle.sgr_score(V, W, PARAMS, **options) == oracle.sgr_readout(nodes, PARAMS)
    mean, variance = PARAMS['filter_norm/mean'][0], PARAMS['filter_norm/variance'][0]
    assert oracle.saf_score(V, W, PARAMS, **options) == oracle.saf_readout(nodes, PARAMS, mean, variance)
    assert oracle.saf_score(V, W, PARAMS) != oracle.saf_score(V, W, PARAMS, **options)


def filter_logits(captions, vectors):
    """All logits of each caption: I x (1 + n) numbers."""
    logits = []
    for words in captions:
        text = oracle.text_global(words, PARAMS)
        nodes = [oracle.alignments(x, words, v, text, PARAMS) for x, v in zip(IMAGES, vectors, strict=True)]
        logits.append(np.concatenate(nodes) @ PARAMS['filter/kernel'][:, 0] + PARAMS['filter/bias'])
    return logits


def test_saf_in_training_is_saf_with_each_captions_statistics():
    vectors = np.array([oracle.image_global(x, PARAMS) for x in IMAGES])
    scores, mean, variance = oracle.saf_batch(IMAGES, CAPTIONS, PARAMS, image_vectors=vectors)
    logits = filter_logits(CAPTIONS, vectors)
    for j in range(3):
        own = {'filter_norm/mean': logits[j].mean(keepdims=True), 'filter_norm/variance': logits[j].var(keepdims=True)}
        want = [oracle.saf_score(x, CAPTIONS[j], PARAMS | own) for x in IMAGES]
        np.testing.assert_allclose(scores[:, j], want, **TIGHT)
        assert len(logits[j]) == 3 * (1 + len(CAPTIONS[j]))
    old = 0.9**3, 0.1 * 0.9**2, 0.1 * 0.9, 0.1
    want = np.dot(old, [PARAMS['filter_norm/mean'][0], *(x.mean() for x in logits)])
    np.testing.assert_allclose(mean, [want], **TIGHT)
    want = np.dot(old, [PARAMS['filter_norm/variance'][0], *(x.var() * len(x) / (len(x) - 1) for x in logits)])
    np.testing.assert_allclose(variance, [want], **TIGHT)
    reverse, *_ = oracle.saf_batch(IMAGES, CAPTIONS[::-1], PARAMS, image_vectors=vectors)
    np.testing.assert_array_equal(reverse[:, ::-1], scores)


def test_image_vectors_in_training_use_batch_statistics():
    vectors, running = oracle.image_globals_in_training(IMAGES, PARAMS)
    slots = []
    for r in range(4):
        having = np.stack([x[r] for x in IMAGES if r < len(x)])
        slots.append(having @ PARAMS['image_local/kernel'] + PARAMS['image_local/bias'])
    means = np.stack([x.mean(0) for x in IMAGES])
    guides = means @ PARAMS['image_global/kernel'] + PARAMS['image_global/bias']
    own = {
        'image_local_norm/mean': np.array([x.mean() for x in slots]),
        'image_local_norm/variance': np.array([x.var() for x in slots]),
        'image_global_norm/mean': guides.mean(0),
        'image_global_norm/variance': guides.var(0),
    }
    want = [oracle.image_global(x, PARAMS | own) for x in IMAGES]
    np.testing.assert_allclose(vectors, want, **TIGHT)
    assert [x.size for x in slots] == [9, 9, 9, 6]
    sizes = {'image_local_norm': np.array([9, 9, 9, 6]), 'image_global_norm': 3}
    for key, batch in own.items():
        name, statistic = key.split('/')
        if statistic == 'variance':
            batch = batch * sizes[name] / (sizes[name] - 1)
        np.testing.assert_allclose(running[key], 0.9 * PARAMS[key] + 0.1 * batch, **TIGHT)
    default, *_ = oracle.saf_batch(IMAGES, CAPTIONS, PARAMS)
    given, *_ = oracle.saf_batch(IMAGES, CAPTIONS, PARAMS, image_vectors=vectors)
    np.testing.assert_array_equal(default, given)


def test_a_slot_without_regions_keeps_its_statistics():
    _, running = oracle.image_globals_in_training([IMAGES[1], IMAGES[2][:2]], PARAMS)
    for key in ('image_local_norm/mean', 'image_local_norm/variance'):
        np.testing.assert_array_equal(running[key] != PARAMS[key], [True, True, True, False])


def test_naaf_by_hand():
    """Threshold 0.7: word 0 matches region 0 alone (0.8), word 1 nothing, and misses by 0.1."""
    similarity = np.array(BY_HAND['t2i'])
    first = logistic(20 * (similarity[:, 0] - similarity[:, 1]))
    relevance = 0.8 * first[0] + 0.6 * (1 - first[0]), 0.6 * first[1] - 0.8 * (1 - first[1])
    want = (0.8 - 0.1 + sum(relevance)) / 2
    for smooth in (False, True):  # orthogonal words keep their own decision
        np.testing.assert_allclose(oracle.naaf_score(REGIONS, WORDS, threshold=0.7, smooth=smooth), want, **TIGHT)
    matched, weights = oracle.naaf_attention(REGIONS, WORDS, threshold=0.7)
    np.testing.assert_allclose(matched, [[1, 0], [0, 0]], **TIGHT)
    np.testing.assert_allclose(weights[:, 0], first, **TIGHT)


def test_naaf_weighs_the_matched_regions():
    """Threshold 0.5: word 0 sees 0.3 and 0.1 above it, word 1 only region 0."""
    options = {'softmax_temperature': 10}
    matched, _ = oracle.naaf_attention(REGIONS, WORDS, threshold=0.5, **options)
    p = logistic(10 * 0.2)
    np.testing.assert_allclose(matched, [[p, 1 - p], [1, 0]], **TIGHT)
    low = oracle.naaf_score(REGIONS, WORDS, threshold=0.5, smooth=False, **options)
    none = oracle.naaf_score(REGIONS, WORDS, threshold=1, smooth=False, **options)  # nothing matched: -0.2 and -0.4
    matched = (0.8 * p + 0.6 * (1 - p)) / np.hypot(p, 1 - p) + 0.6
    np.testing.assert_allclose(2 * (low - none), matched + 0.6, **TIGHT)


@pytest.mark.parametrize(
    ('threshold', 'without', 'smoothed'),
    [
        (0.83, -0.03, 0.0),  # M = 0.17, -0.03; smoothed by 0.731 and 0.269 word 1 is positive
        (0.88, -0.08, -0.08),  # M = 0.12, -0.08; still negative
        (0.97, -0.17, 0.03 - 0.17),  # M = 0.03, -0.17; word 0 turns negative and adds its own +0.03
    ],
)
def test_naaf_smoothing_decides_which_words_are_negative(threshold, without, smoothed):
    words = np.array([[1, 0], [0.8, 0.6]])
    region = REGIONS[:1]  # with one region, f is 1 or 0 for each word and g its similarity
    features = 1.0 + 0.8 * (threshold < 0.8)
    scores = [oracle.naaf_score(region, words, threshold=threshold, smooth=smooth) for smooth in (False, True)]
    np.testing.assert_allclose(scores, (np.array([without, smoothed]) + features + 1.8) / 2, **TIGHT)


def density(x, values):
    return np.exp(-0.5 * ((x - np.mean(values)) / np.std(values, ddof=1)) ** 2) / np.std(values, ddof=1)


@pytest.mark.parametrize('alpha', [1.0, 2.0, 3.0])
def test_the_boundary_is_where_one_density_is_alpha_times_the_other(alpha):
    positives, negatives = [0.55, 0.6, 0.7, 0.8], [0.1, 0.25, 0.3, 0.5]
    threshold, safe = oracle.naaf_boundary(positives, negatives, 0, 0, alpha)
    assert np.mean(negatives) < threshold < np.mean(positives)
    np.testing.assert_allclose(density(threshold, positives), alpha * density(threshold, negatives), rtol=1e-6)
    np.testing.assert_allclose(safe, np.mean(positives) - 3 * np.std(positives, ddof=1))


def test_a_boundary_that_is_nowhere_or_outside():
    """One density is at most 3 times the other; they differ enough only above 1; and 0.5 - 3 * 0.57 is below 0."""
    assert oracle.naaf_boundary([0.4, 0.6], [0.2, 0.8], 0.3, 0.2, alpha=4) == (0.3, 0.2)
    assert oracle.naaf_boundary([0.85, 0.95], [0.88, 0.92], 0.3, 0.2, alpha=1e4)[0] == 0
    assert oracle.naaf_boundary([0.1, 0.9], [0.2, 0.3], 0.3, 0.2)[1] == 0


def test_thresholds_of_a_batch_in_order():
    """Captions 0 and 2 find their image; with caption 2 there are more than two words, and caption 3 goes on."""
    rng = np.random.default_rng(0)
    images = [unit(rng.normal(size=(3, 4))) for _ in range(4)]
    captions = [unit(images[k][:2] + 0.2 * rng.normal(size=(2, 4))) for k in (0, 3, 2, 0)]
    scores = oracle.score_matrix(oracle.naaf_score, images, captions, threshold=0, smooth=False)
    assert scores[:, :3].argmax(0).tolist() == [0, 3, 2]
    positives = [(captions[i] @ images[i].T).max(1) for i in (0, 2)]
    negatives = [(captions[i] @ images[scores[:, i].argmin()].T).max(1) for i in (0, 2)]
    new, new_safe = oracle.naaf_boundary(np.concatenate(positives), np.concatenate(negatives), 0, 0)
    used, threshold, safe = oracle.naaf_thresholds(images, captions, minimum=2)
    np.testing.assert_allclose(used, [0, 0, 0, 0.7 * new], **TIGHT)
    np.testing.assert_allclose([threshold, safe], [0.91 * new, 0.91 * new_safe], **TIGHT)  # 0.7 + 0.3 * 0.7
    assert min(new, new_safe) > 0.1
    assert oracle.naaf_thresholds(images, captions)[1:] == (0, 0)  # 4 words are not more than 200
    assert oracle.naaf_thresholds(images, captions, minimum=4)[1:] == (0, 0)
    assert oracle.naaf_thresholds(images[:1], captions[:1], minimum=0)[1:] == (0, 0)  # nothing to tell apart


def test_training_scores_use_the_current_threshold():
    """The captions that find their image are told by the thresholds used; other scores would tell others."""
    rng = np.random.default_rng(1039)
    images = [unit(rng.normal(size=(3, 4))) for _ in range(8)]
    captions = [unit(x[:3] + 0.8 * rng.normal(size=(3, 4))) for x in images]
    used, threshold, safe = oracle.naaf_thresholds(images, captions, minimum=1)

    def scores(i, **options):
        return np.array([oracle.naaf_score(image, captions[i], **options) for image in images])

    by_rule = [scores(i, threshold=used[i], smooth=False) for i in range(8)]
    found = [i for i in range(8) if by_rule[i].argmax() == i]
    assert found != [i for i in range(8) if scores(i, threshold=0, smooth=False).argmax() == i]
    assert found != [i for i in range(8) if scores(i, threshold=used[i], smooth=True).argmax() == i]
    expected, positives, negatives = [(0, 0)], [], []
    for i in range(8):
        if i in found:
            positives += (captions[i] @ images[i].T).max(1).tolist()
            negatives += (captions[i] @ images[by_rule[i].argmin()].T).max(1).tolist()
        new = oracle.naaf_boundary(positives, negatives, *expected[-1]) if positives else (0, 0)
        expected.append(0.7 * np.array(new) + 0.3 * np.array(expected[-1]))
    np.testing.assert_allclose([*used, threshold], [x for x, _ in expected], **TIGHT)
    np.testing.assert_allclose(safe, expected[-1][1], **TIGHT)


def test_dbl_by_hand():
    """Words e1 and e2 on the regions e1 and e2 at temperature ln 3: both differ from their context in both features."""
    context = np.array([3, 1]) / np.sqrt(10)
    difference = unit((context - [1, 0]) ** 2)
    mean = (difference + difference[::-1]) / 2
    params = identity_params()
    params['score/kernel'], params['score/bias'] = np.array([[2.0], [1]]), np.array([0.1])
    score = oracle.dbl_score(REGIONS, REGIONS, params, softmax_temperature=np.log(3))
    np.testing.assert_allclose(score, np.tanh(unit(mean) @ [2, 1] + 0.1), **TIGHT)


SCORES = {
    'scan_t2i': oracle.scan_score,
    'scan_i2t': lambda v, w: oracle.scan_score(v, w, direction='i2t'),
    'bfan': oracle.bfan_score,
    'naaf': lambda v, w: oracle.naaf_score(unit(v), unit(w), threshold=0.3, smooth=True),
    'sgr': lambda v, w, params=PARAMS: oracle.sgr_score(v, w, params),
    'saf': lambda v, w, params=PARAMS: oracle.saf_score(v, w, params),
    'dbl': lambda v, w, params=PARAMS: oracle.dbl_score(v, w, params),
}


READOUT = {'softmax_temperature': (9, 4)}
SCAN = {'aggregation': ('LogSumExp', 'Mean')}
DEFAULTS = {  # score: (arguments, {option: (published, another)})
    'scan_t2i': (oracle.scan_score, (), {**SCAN, 'softmax_temperature': (9, 4), 'lse_temperature': (6, 5)}),
    'scan_i2t': (
        lambda v, w, **options: oracle.scan_score(v, w, direction='i2t', **options),
        (),
        {**SCAN, 'softmax_temperature': (4, 9), 'lse_temperature': (5, 6)},
    ),
    'bfan': (oracle.bfan_score, (), {'softmax_temperature': (20, 5), 'focal': ('equal', 'prob')}),
    'sgr': (oracle.sgr_score, (PARAMS,), READOUT),
    'saf': (oracle.saf_score, (PARAMS,), READOUT),
    'dbl': (oracle.dbl_score, (PARAMS,), READOUT),
    'naaf': (
        lambda v, w, **options: oracle.naaf_score(unit(v), unit(w), threshold=0.3, smooth=False, **options),
        (),
        {'softmax_temperature': (20, 9)},
    ),
}


@pytest.mark.parametrize('name', DEFAULTS)
def test_defaults_are_the_published_ones_and_every_option_matters(name):
    score, args, options = DEFAULTS[name]
    default = score(IMAGES[1], W, *args)
    assert default == score(IMAGES[1], W, *args, **{key: published for key, (published, _) in options.items()})
    for key, (_, another) in options.items():
        assert abs(default - score(IMAGES[1], W, *args, **{key: another})) > 1e-5, key


@pytest.mark.parametrize('name', SCORES)
def test_order_does_not_matter(name):
    score, order = SCORES[name], np.array([2, 0, 3, 1])
    with_slots = ()
    if name in ('sgr', 'saf'):  # a region takes its slot's statistics along
        with_slots = ({key: x[order] if key.startswith('image_local_norm') else x for key, x in PARAMS.items()},)
    np.testing.assert_allclose(score(V[order], W, *with_slots), score(V, W), **TIGHT)
    np.testing.assert_allclose(score(V, W[::-1]), score(V, W), **TIGHT)


def test_slots_matter_to_sgraf():
    assert abs(oracle.saf_score(V[::-1], W, PARAMS) - oracle.saf_score(V, W, PARAMS)) > 1e-4


@pytest.mark.parametrize('name', ['scan_t2i', 'scan_i2t', 'bfan'])
def test_length_does_not_matter_where_all_is_cosines(name):
    score = SCORES[name]
    np.testing.assert_allclose([score(7 * V, W), score(V, 7 * W)], score(V, W), **TIGHT)


def test_length_of_regions_does_not_matter_to_attention():
    lengths = np.array([[1], [2], [5], [0.5]])
    np.testing.assert_allclose(oracle.scan_attention(V, W), oracle.scan_attention(V * lengths, W), atol=1e-6)


def test_attention_sums_to_one_over_what_is_attended_to():
    for direction, axis in (('t2i', 1), ('i2t', 0)):
        weights = oracle.scan_attention(V, W, direction=direction)
        assert weights.shape == (5, 4)
        np.testing.assert_allclose(weights.sum(axis), 1)
    for weights, axis in zip(oracle.bfan_attention(V, W), (1, 0), strict=True):
        np.testing.assert_allclose(weights.sum(axis), 1)


def test_score_matrix_has_images_first():
    sims = oracle.score_matrix(oracle.naaf_score, UNIT_IMAGES, UNIT_CAPTIONS[:2], threshold=0.1, smooth=False)
    assert sims.shape == (3, 2)
    assert sims[2, 1] == oracle.naaf_score(UNIT_IMAGES[2], UNIT_CAPTIONS[1], threshold=0.1, smooth=False)


def test_numerical_gradient():
    """Central differences of a quadratic are exact with any step."""
    x, params = np.array([[1.0, 2.0], [3.0, 4.0]]), {'a': np.array([0.5]), 'b': np.array([2.0, 3.0])}
    got = oracle.numerical_gradient(lambda x, p: np.sum(x**2) * p['a'][0] + np.prod(p['b']), [x, params], step=0.5)
    np.testing.assert_allclose(got[0], x)
    np.testing.assert_allclose(got[1]['a'], [30])
    np.testing.assert_allclose(got[1]['b'], [3, 2])
    assert x[0, 0] == 1


@pytest.mark.parametrize('name', SCORES)
def test_gradients_are_finite_and_not_zero(name):
    for gradient in oracle.numerical_gradient(SCORES[name], [V, W]):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-4
