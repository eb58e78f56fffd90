import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitm import metrics


def sorted_ranks(sims, image_of_text):
    """The field's protocol: sort each row and column and look the matches up."""
    i2t = [
        min(np.flatnonzero(image_of_text[np.argsort(-row, kind='stable')] == image)) for image, row in enumerate(sims)
    ]
    t2i = [list(np.argsort(-sims[:, text], kind='stable')).index(image) for text, image in enumerate(image_of_text)]
    return i2t, t2i


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 12))
def test_ranks_are_those_of_sorting_for_any_number_of_texts(seed, images, more_texts):
    rng = np.random.default_rng(seed)
    image_of_text = np.concatenate([np.arange(images), rng.integers(0, images, more_texts)])
    rng.shuffle(image_of_text)
    sims = rng.permutation(images * len(image_of_text)).reshape(images, -1).astype(np.float32)
    i2t, t2i = metrics.ranks(sims, image_of_text)
    want_i2t, want_t2i = sorted_ranks(sims, image_of_text)
    np.testing.assert_array_equal(i2t, want_i2t)
    np.testing.assert_array_equal(t2i, want_t2i)


def test_ties_count_against_the_query():
    i2t, t2i = metrics.ranks(np.zeros((3, 6), np.float32), np.repeat(np.arange(3), 2))
    np.testing.assert_array_equal(i2t, [4, 4, 4])
    np.testing.assert_array_equal(t2i, [2] * 6)


def test_metrics_by_hand():
    # Ranks of the ten queries of each direction: 0 for nine, 9 for one.
    sims = np.eye(10, dtype=np.float32)
    sims[3, 3] = -1
    got = metrics.retrieval_metrics(sims, np.arange(10))
    for direction in ('i2t', 't2i'):
        assert [got[f'{direction}/recall@{k}'] for k in (1, 5, 10)] == [90, 90, 100]
        assert got[f'{direction}/median_rank'] == 1
        assert got[f'{direction}/mean_rank'] == pytest.approx(1.9)
    assert got['rsum'] == pytest.approx(560)
    assert got['mean_distance'] == pytest.approx(0.8)
    rsum, distance = metrics.table(got).splitlines()[3:]
    assert rsum == 'rsum 560.0'
    assert distance == 'MD 0.8 (mean distance: the mean score of matching pairs minus that of others)'


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(0, 12))
def test_the_mean_distance_is_that_of_the_loop(seed, images, more_texts):
    rng = np.random.default_rng(seed)
    image_of_text = np.concatenate([np.arange(images), rng.integers(0, images, more_texts)])
    rng.shuffle(image_of_text)
    sims = rng.normal(size=(images, len(image_of_text))).astype(np.float32)
    pairs = {True: [], False: []}
    for image in range(images):
        for text, owner in enumerate(image_of_text):
            pairs[bool(owner == image)].append(float(sims[image, text]))
    want = np.mean(pairs[True]) - np.mean(pairs[False])
    assert metrics.mean_distance(sims, image_of_text) == pytest.approx(want, rel=1e-9, abs=1e-12)


def test_mean_distance_of_half_precision_is_not_rounded():
    sims = np.full((300, 1500), 0.1, np.float16)
    assert metrics.mean_distance(sims, np.repeat(np.arange(300), 5)) == pytest.approx(0, abs=1e-9)
    assert np.isnan(metrics.mean_distance(sims[:1], np.zeros(1500, int)))  # without a negative


def test_a_median_between_two_ranks_is_the_lower():
    assert metrics.recalls(np.array([9, 0, 6, 3]))['median_rank'] == 5


def test_the_table_has_a_row_for_each_direction():
    names = ('recall@1', 'recall@5', 'recall@10', 'median_rank', 'mean_rank')
    values = {'i2t': [1, 2, 3, 4, 5], 't2i': [6, 7, 8, 9, 10]}
    numbers = {f'{way}/{name}': n for way in values for name, n in zip(names, values[way], strict=True)}
    _, i2t, t2i, _ = metrics.table(numbers | {'rsum': 27}).splitlines()  # as an older run logged it
    for line, label, want in ((i2t, 'image to text', values['i2t']), (t2i, 'text to image', values['t2i'])):
        assert line.startswith(label)
        assert [float(number) for number in line.removeprefix(label).split()] == want


def test_folds_average_their_parts():
    rng = np.random.default_rng(0)
    image_of_text = np.repeat(np.arange(20), 5)
    sims = rng.normal(size=(20, 100)).astype(np.float32)
    got = metrics.retrieval_metrics(sims, image_of_text, folds=4)
    parts = [
        metrics.retrieval_metrics(sims[5 * n : 5 * n + 5, 25 * n : 25 * n + 25], np.repeat(np.arange(5), 5))
        for n in range(4)
    ]
    for name in got:
        assert got[name] == pytest.approx(np.mean([part[name] for part in parts]))


@pytest.mark.parametrize(
    ('sims', 'image_of_text', 'message'),
    [
        (np.full((2, 2), np.nan), [0, 1], 'NaN'),
        (np.zeros((2, 3)), [0, 1], '3 texts'),
        (np.zeros((2, 2)), [0, 0], 'only 1 of 2 images'),
    ],
)
def test_what_cannot_be_ranked_is_refused(sims, image_of_text, message):
    with pytest.raises(ValueError, match=message):
        metrics.ranks(sims, np.array(image_of_text))


def test_folds_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match='3 images cannot be split into 2 folds'):
        metrics.retrieval_metrics(np.eye(3), np.arange(3), folds=2)


def test_word_metrics_equal_loops():
    rng = np.random.default_rng(0)
    fits, labels, mask = rng.random((9, 7)), rng.random((9, 7)) < 0.8, rng.random((9, 7)) < 0.6
    originals, corrections = rng.integers(3, size=(2, 9, 7))
    counts = dict.fromkeys(('matched', 'mismatched', 'overall', 'replaced', 'all'), (0, 0))

    def count(name, right):
        counts[name] = counts[name][0] + right, counts[name][1] + 1

    for n, place in np.argwhere(mask):
        fitting = labels[n, place]
        right = (fits[n, place] > 0.5) == labels[n, place]
        for name in ('overall', 'matched' if fitting else 'mismatched'):
            count(name, right)
        for name in ('all',) if fitting else ('all', 'replaced'):
            count(name, corrections[n, place] == originals[n, place])
    want = {name: 100 * right / of for name, (right, of) in counts.items()}
    want['balanced'] = (want['matched'] + want['mismatched']) / 2
    got = metrics.word_discrimination(fits, labels, mask)
    got |= metrics.word_correction(corrections, originals, ~labels, mask)
    assert got == pytest.approx(want)


def test_what_there_are_no_words_for_is_not_a_number():
    got = metrics.word_discrimination(np.ones((1, 2)), np.ones((1, 2), bool), np.ones((1, 2), bool))
    assert (got['matched'], got['overall']) == (100, 100)
    assert np.isnan([got['mismatched'], got['balanced']]).all()


def test_caption_discrimination_by_hand():
    """A tie counts against the caption; a caption without false sentences does not count."""
    scores_of_captions = np.array([1.0, 2.0, 3.0, 4.0])
    scores, owners = np.array([0.5, 2.0, 1.0, 3.9, -1.0, 3.0]), np.array([0, 1, 1, 3, 3, 3])
    assert metrics.caption_discrimination(scores_of_captions, scores, owners) == {
        'pairwise': pytest.approx(500 / 6),
        'hardest': pytest.approx(200 / 3),
    }


def test_pseudo_perplexity_by_hand():
    """Words of probability 1/2 and 1/8 in one sentence, 1/4 in another, none in a third."""
    log_probabilities = np.log([[0.5, 0.125, 0.9], [0.25, 0.9, 0.9], [0.9, 0.9, 0.9]])
    mask = np.array([[True, True, False], [True, False, False], [False] * 3])
    got = metrics.pseudo_perplexity(log_probabilities, mask)
    assert got == {'caption': pytest.approx(4.0), 'corpus': pytest.approx(64 ** (1 / 3))}
    mask[0, 0] = False
    got = metrics.pseudo_perplexity(log_probabilities, mask)
    assert got == {'caption': pytest.approx(6.0), 'corpus': pytest.approx(32**0.5)}
