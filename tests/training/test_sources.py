import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.losses.ranking import hardest_negative, hardest_positive, softmax_contrastive
from jitm.models.matcher import DualEncoder
from jitm.training.diagnostics import collapse_metrics, noise_metrics
from jitm.training.objective import objective
from jitm.training.plan import make_plan
from jitm.training.source import View
from jitm.training.sources.in_batch import SAME_IMAGE
from jitm.training.sources.perturbed import perturbed
from jitm.training.sources.relevance import with_relevance
from jitm.training.sources.sampled import sampled
from jitm.training.step import with_anchors
from jitm.types import Batch, Pairs, Texts
from tests.configs.settings import load
from tests.models.test_matchers import MATCHERS, make_inputs, perturb
from tests.training.models import (
    candidates_source,
    in_batch_source,
    make_terms,
    on_one_device,
    shortlist_source,
    small_vse,
)

MODEL = small_vse()
PAIRS, EXTRA, HARD = 4, 6, 3
SCORES = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)


class Scores(DualEncoder):
    """A matcher whose vectors of texts are given, and whose images are all of them: any matrix of scores."""

    learned: float | None = None

    @property
    def temperature(self):
        """See `Matcher.temperature`."""
        return None if self.learned is None else jnp.float32(self.learned)


def rank_in_batch(index, scores=SCORES, relevance=None, anchors=(), **options):
    """The rankings of in-batch scores."""
    drawn = {} if relevance is None else {'relevance': relevance}
    batch = Batch(np.int32(0), None, None, np.asarray(index), drawn=drawn)
    source = candidates_source({'source': 'in_batch', 'same_image': 'negative'} | options)
    source = with_relevance(source, None) if drawn else source

    def rank(scores):
        images = jnp.eye(len(scores))
        return source.score(Scores(), images, scores.T, batch, None, True)[0]

    rankings = on_one_device(rank)(scores)
    return with_anchors(rankings, [on_one_device(rank)(rows) for rows in anchors])


def test_only_the_gradient_of_texts_is_summed_over_devices():
    batch = Batch(np.int32(0), None, None, np.arange(5))

    def loss(images, texts):
        rankings, _ = in_batch_source().score(Scores(), images, texts, batch, None, True)
        return sum(jnp.sum(ranking.scores) for ranking in rankings.values())

    traced = str(jax.make_jaxpr(jax.grad(loss, (0, 1)), axis_env=[(parallel.AXIS, 4)])(SCORES, SCORES))
    assert traced.count('all_gather[') == 3  # texts, scores and image_index
    assert traced.count('reduce_scatter[') == 1


@pytest.mark.parametrize('same_image', SAME_IMAGE)
def test_in_batch_masks(same_image):
    both = rank_in_batch([4, 7, 4, 1, 0], same_image=same_image)
    np.testing.assert_array_equal(both['i2t'].scores, SCORES)
    np.testing.assert_array_equal(both['t2i'].scores, SCORES.T)
    for r in both.values():
        assert r.positives.diagonal().all()
        assert not (r.positives & r.negatives).any()
        assert r.positives[0, 2] == r.positives[2, 0] == (same_image == 'positive')
        assert r.negatives[0, 2] == r.negatives[2, 0] == (same_image == 'negative')
        assert int(r.positives.sum() + r.negatives.sum()) == 25 - (2 if same_image == 'ignored' else 0)


def test_views_of_a_pair_match_each_other():
    both = rank_in_batch([5, 9, 5], jnp.arange(36.0).reshape(6, 6), same_image='ignored')
    blocks = np.kron(np.eye(3), np.ones((2, 2))).astype(bool)
    other_image = np.kron(np.array([5, 9, 5])[:, None] != [5, 9, 5], np.ones((2, 2)))
    for ranking in both.values():
        np.testing.assert_array_equal(ranking.positives, blocks)
        np.testing.assert_array_equal(ranking.negatives, other_image)


@pytest.mark.parametrize('same_image', SAME_IMAGE)
@pytest.mark.parametrize('views', [1, 2])
@pytest.mark.parametrize('count', [1, 3, 4])
def test_negatives_of_a_query_are_the_next_pairs_of_the_batch(same_image, views, count):
    index, size = [4, 7, 4, 1, 0], 5 * views
    scores = jnp.arange(size**2, dtype=float).reshape(size, size)
    everything = rank_in_batch(index, scores, same_image=same_image)
    both = rank_in_batch(index, scores, same_image=same_image, num_negatives=count)
    for direction, ranking in both.items():
        all_negatives, negatives = everything[direction].negatives, np.zeros((size, size), bool)
        for query in range(size):
            for step in range(1, count + 1):
                candidates = slice((query // views + step) % 5 * views, ((query // views + step) % 5 + 1) * views)
                negatives[query, candidates] = all_negatives[query, candidates]
        np.testing.assert_array_equal(ranking.negatives, negatives)
        np.testing.assert_array_equal(ranking.positives, everything[direction].positives)
        np.testing.assert_array_equal(ranking.scores, everything[direction].scores)
    assert count < 4 or np.array_equal(both['i2t'].negatives, everything['i2t'].negatives)


def test_number_of_negatives_is_below_the_size_of_the_batch():
    config = load('vsepp:vsepp,f8k')
    config['candidates']['num_negatives'] = 127
    make_plan(config)
    config['candidates']['num_negatives'] = 128
    with pytest.raises(UserError) as error:
        make_plan(config)
    message = "config key 'candidates.num_negatives' is 128, but a batch of 128 has 127 other pairs: lower it, or "
    assert str(error.value) == message + 'set it to None for all'


def test_relevance_is_that_of_each_candidate_for_its_query():
    phi = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    both = rank_in_batch(range(5), relevance=phi)
    np.testing.assert_array_equal(both['i2t'].inputs['relevance'], phi)
    np.testing.assert_array_equal(both['t2i'].inputs['relevance'], phi.T)
    assert not any(r.inputs for r in rank_in_batch(range(5)).values())
    views = rank_in_batch(range(2), jnp.zeros((4, 4)), relevance=phi[:2, :2])
    np.testing.assert_array_equal(views['t2i'].inputs['relevance'], np.kron(phi[:2, :2].T, np.ones((2, 2))))


def test_anchor_scores_are_stacked_and_transposed():
    anchors = [SCORES + 1, SCORES + 2]
    both = rank_in_batch(range(5), anchors=anchors)
    np.testing.assert_array_equal(both['i2t'].inputs['anchor_scores'], np.stack(anchors))
    np.testing.assert_array_equal(both['t2i'].inputs['anchor_scores'], np.stack([rows.T for rows in anchors]))
    assert not any(r.inputs for r in rank_in_batch(range(5)).values())


@pytest.mark.parametrize(
    ('section', 'message'),
    [
        ({'source': 'x'}, "'candidates.source' is 'x', but names of jitm.training.sources have the form"),
        ({}, "'candidates.source' is missing"),
        ({'source': 'in_batch', 'same_image': 'x'}, "config key 'candidates.same_image' is 'x'; use one of negative"),
        ({'source': 'shortlist', 'num_extra': 4}, "config key 'candidates.num_hard' is missing"),
        (
            {'source': 'in_batch', 'same_image': 'negative', 'num_hard': 1},
            "'candidates.num_hard' is unknown",
        ),
    ],
)
def test_errors_of_the_section_name_their_key(section, message):
    with pytest.raises(UserError, match=message):
        candidates_source(section)


@pytest.fixture(scope='module')
def variables():
    sampled = jax.jit(MODEL.init)(jax.random.key(0), *make_inputs())
    return {'params': perturb(sampled['params']), 'batch_stats': {}}


def make_batch(num_extra=EXTRA):
    images, texts = make_inputs(PAIRS + num_extra, PAIRS + num_extra)
    own, extra = (
        jax.tree.map(lambda x, part=part: x[part], (images, texts)) for part in (slice(PAIRS), slice(PAIRS, None))
    )
    index = np.array([3, 5, 3, 8, 5, 1, 2, 3, 9, 8])[: PAIRS + num_extra].astype(np.int32)
    batch = Batch(np.int32(0), *own, index[:PAIRS])
    if num_extra:
        batch = batch.replace(drawn={'shortlist': (Pairs(*extra), index[PAIRS:])})
    return batch, images, texts, index


def rank_batch(source, batch, variables, params=None):
    """The rankings of a batch: chosen with some variables, scored with these or with other parameters."""
    view = View({'m': (MODEL, variables)}, batch, {}, 0)
    chosen = source.look(view, {'m': jax.random.key(0)})['m']

    def rank(matcher):
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        return source.score(matcher, images, texts, batch, chosen, True)

    rankings, losses = MODEL.apply(variables if params is None else variables | {'params': params}, method=rank)
    assert losses == {}
    return rankings


@pytest.mark.parametrize('num_extra', [EXTRA, 0])
def test_shortlist_is_the_hardest_of_all_candidates(variables, num_extra):
    batch, images, texts, index = make_batch(num_extra)
    sims = np.asarray(jax.jit(MODEL.apply)(variables, images, texts))
    source = shortlist_source(num_extra, HARD)
    rankings = on_one_device(functools.partial(rank_batch, source))(batch, variables)
    for direction, rows in (('i2t', sims[:PAIRS]), ('t2i', sims.T[:PAIRS])):
        ranking = rankings[direction]
        assert ranking.scores.shape == (PAIRS, 1 + HARD)
        assert np.asarray(ranking.positives).tolist() == [[True, *[False] * HARD]] * PAIRS
        for q in range(PAIRS):
            np.testing.assert_allclose(ranking.scores[q, 0], rows[q, q], atol=1e-5)
            others = np.sort(rows[q][index != index[q]])[::-1][:HARD]
            valid = np.asarray(ranking.negatives[q, 1:])
            assert valid.sum() == len(others)
            np.testing.assert_allclose(np.asarray(ranking.scores[q, 1:])[valid], others, atol=1e-5)


def test_gradient_of_shortlist_is_that_of_the_matrix(variables):
    batch, images, texts, index = make_batch()
    source = shortlist_source(EXTRA, EXTRA + PAIRS - 1)

    def listed(params):
        rankings = rank_batch(source, batch, variables, params)
        return sum(jnp.sum(jnp.where(r.negatives | r.positives, jnp.sin(r.scores), 0)) for r in rankings.values())

    def whole(params):
        sims = MODEL.apply(variables | {'params': params}, images, texts)
        counted = (index[:, None] != index) | np.eye(len(index), dtype=bool)
        return sum(jnp.sum(jnp.where(counted, jnp.sin(s), 0)[:PAIRS]) for s in (sims, sims.T))

    got, want = (on_one_device(jax.value_and_grad(loss))(variables['params']) for loss in (listed, whole))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), got, want)


REPLACED = np.array([True, False, False, True])


def rank_sampled(variables):
    """The rankings of four pairs, and the scores of the pairs and of their mismatched pairs."""
    batch, images, texts, _ = make_batch(num_extra=PAIRS)
    own, extra = (jax.tree.map(lambda x, part=part: x[part], (images, texts)) for part in (slice(4), slice(4, None)))

    def choose(first, second):
        rows = REPLACED.reshape(-1, *[1] * (first.ndim - 1))
        return np.where(rows, first, second)

    mismatched = Pairs(jax.tree.map(choose, own[0], extra[0]), jax.tree.map(choose, extra[1], own[1]))
    batch = batch.replace(drawn={'sampled': (mismatched, jnp.asarray(REPLACED))})

    def rank(matcher):
        encoded = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        rankings, losses = sampled().score(matcher, *encoded, batch, None, False)
        assert losses == {}
        return rankings, matcher(*own), matcher(mismatched.images, mismatched.texts)

    rankings, matching, other = on_one_device(lambda v: MODEL.apply(v, method=rank))(variables)
    return rankings, np.diag(matching), np.diag(other)


def test_sampled_negatives_rank_one_query_of_each_pair(variables):
    rankings, matching, other = rank_sampled(variables)
    for direction, valid in (('i2t', REPLACED), ('t2i', ~REPLACED)):
        got = rankings[direction]
        np.testing.assert_allclose(got.scores, np.stack([matching, other], axis=1), atol=1e-6)
        assert np.asarray(got.positives).tolist() == [[True, False]] * PAIRS
        np.testing.assert_array_equal(got.negatives, np.stack([np.zeros(PAIRS, bool), valid], axis=1))
        assert not got.inputs


def test_perturbed_captions_are_further_negatives_of_images():
    index, is_perturbed = np.array([4, 7, 4]), np.array([True, False, True])
    texts, images = np.eye(6, dtype=np.float32)[:3], np.arange(18, dtype=np.float32).reshape(3, 6)
    batch = Batch(np.int32(0), None, None, index, drawn={'perturbed': (Texts(None, None), is_perturbed)})
    source = perturbed('ignored', ('swap',))

    class Given(Scores):
        def encode_text(self, texts, train=False):
            return jnp.eye(6)[3:]

    both = on_one_device(lambda t: source.score(Given(), jnp.asarray(images), t, batch, None, True)[0])(texts)
    np.testing.assert_array_equal(both['i2t'].scores, images)  # captions, then perturbed captions
    np.testing.assert_array_equal(both['i2t'].positives, np.eye(3, 6, dtype=bool))
    other = index[:, None] != index
    np.testing.assert_array_equal(both['i2t'].negatives, np.hstack([other, np.tile(is_perturbed, (3, 1))]))
    np.testing.assert_array_equal(both['t2i'].scores, images[:, :3].T)
    np.testing.assert_array_equal(both['t2i'].negatives, other)
    # NegCLIP's loss: the softmax over all captions for each image, and over the images for each caption.
    masks = both['i2t'].positives, both['i2t'].negatives
    loss = softmax_contrastive(both['i2t'].scores, *masks, temperature=1.0)
    kept = np.exp(images - images.max()) * np.hstack([other | np.eye(3, dtype=bool), np.tile(is_perturbed, (3, 1))])
    np.testing.assert_allclose(loss, -np.log(np.diagonal(kept) / kept.sum(axis=1)), rtol=1e-4)


def test_perturbed_captions_need_kinds_and_scene_graphs():
    config = load('vsepp:vsepp,f8k')
    config['candidates'] = {'source': 'perturbed', 'same_image': 'negative', 'perturbations': ('relation',)}
    with pytest.raises(UserError, match=r"'scene_graphs.source' is '', but 'candidates.perturbations' needs scene"):
        make_plan(config)
    config['candidates']['perturbations'] = ('swap',)
    make_plan(config)
    config['candidates']['perturbations'] = ()
    with pytest.raises(UserError, match=r"'candidates.perturbations' is empty; give kinds, such as"):
        make_plan(config)


ALWAYS = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}


def chunked(scores, index, queries=2, learned=0.3, train=True, **keywords):
    """The value of terms in chunks and in the whole batch, their gradients, and the rankings of both."""
    terms = make_terms({'ranking': ALWAYS | keywords})
    source = candidates_source({'source': 'in_chunks', 'same_image': 'ignored', 'queries': queries}, terms)
    batch = Batch(np.int32(0), None, None, np.asarray(index))

    def value(scores, source):
        ranked, losses = source.score(Scores(learned), jnp.eye(len(scores)), scores.T, batch, None, train)
        return objective(terms, ranked, 0, losses)[0], ranked

    def gradient_of(source):
        return jax.value_and_grad(functools.partial(value, source=source), has_aux=True)

    (value_of_chunks, ranked), gradient = on_one_device(gradient_of(source))(scores)
    (whole, ranked_whole), gradient_of_whole = on_one_device(gradient_of(in_batch_source('ignored')))(scores)
    return (value_of_chunks, gradient), (whole, gradient_of_whole), (ranked, ranked_whole)


@pytest.mark.parametrize('queries', [1, 2, 5, 9])
@pytest.mark.parametrize(
    'term',
    [
        {'loss': 'ranking.sigmoid_contrastive', 'bias': -1.5, 'reduction': 'mean', 'rankings': ('i2t',)},
        {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'reduction': 'sum'},
        {'loss': 'ranking.softmax_contrastive', 'reduction': 'mean'},
    ],
    ids=['sigmoid', 'max', 'softmax'],
)
def test_chunks_have_the_loss_and_the_gradient_of_the_batch(term, queries):
    chunks, whole, _ = chunked(SCORES, [0, 1, 1, 2, 3], queries, **term)
    assert whole[0] > 0.1
    chex.assert_trees_all_close(chunks, whole, rtol=1e-5, atol=1e-6)


def test_chunks_leave_the_match_and_the_hardest_negative():
    rankings = chunked(SCORES, [0, 1, 1, 2, 3], loss='ranking.max_of_hinges', margin=0.2, reduction='sum')[2]
    ranked, whole = rankings
    for way, ranking in whole.items():
        want = hardest_positive(ranking.scores, ranking.positives), hardest_negative(ranking.scores, ranking.negatives)
        np.testing.assert_allclose(ranked[way].scores, np.stack(want, axis=1), rtol=1e-6)
        np.testing.assert_array_equal(ranked[way].positives, [[True, False]] * 5)
        np.testing.assert_array_equal(ranked[way].negatives, [[False, True]] * 5)


@pytest.mark.slow
def test_chunks_have_the_diagnostics_of_the_batch():
    term = {'loss': 'ranking.matching_cross_entropy', 'reduction': 'sum'}
    rankings = chunked(jax.nn.sigmoid(SCORES), [0, 1, 1, 2, 3], **term)[2]
    terms, clean = make_terms({'ranking': ALWAYS | term}), jnp.asarray([True, False, True, True, False])
    chunks, whole = (collapse_metrics(one, terms, 0) | noise_metrics(one, terms, 0, clean) for one in rankings)
    chex.assert_trees_all_close(chunks, whole, rtol=1e-5)
    assert 0.1 < whole['noise/t2i/gradient'] < 0.9


def dual_softmax(scores, positives, negatives=None, *, temperature: float):
    """A loss that reads the other queries (CAMoE: Cheng et al., 2021)."""
    scores *= jax.nn.softmax(scores / temperature, axis=0) * len(scores)
    return -jnp.sum(jnp.where(positives, jax.nn.log_softmax(scores / temperature, axis=1), 0), axis=1)


def of_pairs(scores, positives, negatives=None, *, margin: float):
    """A loss that needs as many queries as candidates."""
    return jnp.maximum(margin + (scores - jnp.diag(scores)[:, None]).max(axis=1), 0) + scores @ scores.sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['dual_softmax', 'of_pairs'])
def test_chunks_refuse_a_loss_that_reads_other_queries(name):
    config = load('vsepp:vsepp,f8k')
    keys = {'temperature': 0.1} if name == 'dual_softmax' else {'margin': 0.2}
    config['terms'] = {'own': ALWAYS | keys | {'loss': f'{__name__}.{name}', 'reduction': 'sum'}}
    make_plan(config)
    config['candidates'] = {'source': 'in_chunks', 'same_image': 'ignored', 'queries': 2}
    with pytest.raises(UserError, match=r"'terms.own' has a loss that reads .* use candidates.source=in_batch"):
        make_plan(config)
    config['terms']['own'] = ALWAYS | {'loss': 'ranking.sigmoid_contrastive', 'reduction': 'sum'}
    make_plan(config)


def test_chunks_have_no_inputs_of_whole_rankings():
    with pytest.raises(UserError, match=r"'terms.ranking' needs relevance"):
        chunked(SCORES, range(5), loss='ranking.adaptive_margin', reduction='sum')
    with pytest.raises(UserError, match="names 'i2i', which is not a ranking"):
        chunked(SCORES, range(5), loss='ranking.polynomial', margin=0.2, reduction='sum', rankings=('i2t', 'i2i'))


def test_chunks_are_of_dual_encoders():
    source = candidates_source({'source': 'in_chunks', 'same_image': 'ignored', 'queries': 2})
    with pytest.raises(UserError, match="'in_chunks' needs a dual encoder, not SGRAF: use 'in_batch'"):
        source.score(MATCHERS['saf'], None, None, None, None, True)
