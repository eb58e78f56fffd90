import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.training.diagnostics import collapse_metrics, noise_metrics
from jitm.training.objective import objective
from jitm.training.plan import make_plan
from jitm.training.source import View
from jitm.training.sources.in_batch import SAME_IMAGE
from jitm.training.sources.perturbed import perturbed
from jitm.training.sources.sampled import sampled
from jitm.types import Batch, Pairs, Texts
from tests.configs.settings import load
from tests.support.matchers import MATCHERS, make_inputs, perturb
from tests.support.steps import (
    ALWAYS,
    SCORES,
    Scores,
    candidates_source,
    in_batch_source,
    make_terms,
    on_one_device,
    rank_in_batch,
    shortlist_source,
    small_vse,
)

MODEL = small_vse()
PAIRS = 4
EXTRA = 6
HARD = 3


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
    rankings = rank_in_batch([4, 7, 4, 1, 0], same_image=same_image)
    repeated = np.zeros((5, 5), bool)
    repeated[[0, 2], [2, 0]] = True
    diagonal = np.eye(5, dtype=bool)
    for ranking, scores in ((rankings['i2t'], SCORES), (rankings['t2i'], SCORES.T)):
        np.testing.assert_array_equal(ranking.scores, scores)
        np.testing.assert_array_equal(ranking.positives, diagonal | repeated if same_image == 'positive' else diagonal)
        np.testing.assert_array_equal(
            ranking.negatives, ~diagonal if same_image == 'negative' else ~diagonal & ~repeated
        )


def test_views_of_a_pair_match_each_other():
    rankings = rank_in_batch([5, 9, 5], jnp.arange(36.0).reshape(6, 6), same_image='ignored')
    blocks = np.kron(np.eye(3), np.ones((2, 2))).astype(bool)
    other_image = np.kron(np.array([5, 9, 5])[:, None] != [5, 9, 5], np.ones((2, 2)))
    for ranking in rankings.values():
        np.testing.assert_array_equal(ranking.positives, blocks)
        np.testing.assert_array_equal(ranking.negatives, other_image)


@pytest.mark.parametrize('same_image', SAME_IMAGE)
@pytest.mark.parametrize('views', [1, 2])
@pytest.mark.parametrize('count', [1, 3, 4])
def test_negatives_of_a_query_are_the_next_pairs_of_the_batch(same_image, views, count):
    index = [4, 7, 4, 1, 0]
    size = 5 * views
    scores = jnp.arange(size**2, dtype=float).reshape(size, size)
    every = rank_in_batch(index, scores, same_image=same_image)
    limited = rank_in_batch(index, scores, same_image=same_image, num_negatives=count)
    pair = np.arange(size) // views
    following = (pair - pair[:, None]) % 5
    for direction, ranking in limited.items():
        want = every[direction].negatives & (following >= 1) & (following <= count)
        np.testing.assert_array_equal(ranking.negatives, want)
        np.testing.assert_array_equal(ranking.positives, every[direction].positives)
        np.testing.assert_array_equal(ranking.scores, every[direction].scores)


def test_number_of_negatives_is_below_the_size_of_the_batch():
    config = load('vsepp:vsepp,f8k')
    config['candidates']['num_negatives'] = 127
    make_plan(config)
    config['candidates']['num_negatives'] = 128
    message = r"^config key 'candidates.num_negatives' is 128, but a batch of 128 has 127 other pairs: lower it, or "
    with pytest.raises(UserError, match=message):
        make_plan(config)


def test_relevance_is_that_of_each_candidate_for_its_query():
    phi = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    rankings = rank_in_batch(range(5), relevance=phi)
    np.testing.assert_array_equal(rankings['i2t'].inputs['relevance'], phi)
    np.testing.assert_array_equal(rankings['t2i'].inputs['relevance'], phi.T)
    assert not any(r.inputs for r in rank_in_batch(range(5)).values())
    views = rank_in_batch(range(2), jnp.zeros((4, 4)), relevance=phi[:2, :2])
    np.testing.assert_array_equal(views['t2i'].inputs['relevance'], np.kron(phi[:2, :2].T, np.ones((2, 2))))


@pytest.fixture(scope='module')
def variables():
    sampled = jax.jit(MODEL.init)(jax.random.key(0), *make_inputs())
    return {'params': perturb(sampled['params']), 'batch_stats': {}}


def split_rows(pairs):
    """The pairs of the batch, and further ones."""
    return [jax.tree.map(lambda x, part=part: x[part], pairs) for part in (slice(PAIRS), slice(PAIRS, None))]


def make_batch(num_extra=EXTRA):
    images, texts = make_inputs(PAIRS + num_extra, PAIRS + num_extra)
    pairs, extra = split_rows((images, texts))
    index = np.array([3, 5, 3, 8, 5, 1, 2, 3, 9, 8])[: PAIRS + num_extra].astype(np.int32)
    batch = Batch(np.int32(0), *pairs, index[:PAIRS])
    if num_extra:
        batch = batch.replace(drawn={'shortlist': (Pairs(*extra), index[PAIRS:])})
    return batch, images, texts, index


def rank_batch(source, batch, variables, params=None):
    """The rankings of a batch: chosen with some variables, scored with these or with other parameters."""
    view = View({'m': (MODEL, variables)}, batch, {}, 0)
    chosen = source.look(view, {'m': jax.random.key(0)})['m']

    def rank(matcher):
        images = matcher.encode_image(batch.images)
        texts = matcher.encode_text(batch.texts)
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
    for direction, matrix in (('i2t', sims), ('t2i', sims.T)):
        ranking = jax.device_get(rankings[direction])
        assert ranking.positives.tolist() == [[True, *[False] * HARD]] * PAIRS
        np.testing.assert_allclose(ranking.scores[:, 0], np.diag(matrix)[:PAIRS], atol=1e-5)
        for q in range(PAIRS):
            hardest = np.sort(matrix[q][index != index[q]])[::-1][:HARD]
            np.testing.assert_allclose(ranking.scores[q][ranking.negatives[q]], hardest, atol=1e-5)


REPLACED = np.array([True, False, False, True])


def rank_sampled(variables):
    """The rankings of four pairs, and the scores of the pairs and of their mismatched pairs."""
    batch, images, texts, _ = make_batch(num_extra=PAIRS)
    pairs, extra = split_rows((images, texts))

    def choose(first, second):
        return jax.tree.map(lambda a, b: np.where(REPLACED.reshape(-1, *[1] * (a.ndim - 1)), a, b), first, second)

    mismatched = Pairs(choose(pairs[0], extra[0]), choose(extra[1], pairs[1]))
    batch = batch.replace(drawn={'sampled': (mismatched, jnp.asarray(REPLACED))})

    def rank(matcher):
        encoded = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        rankings, losses = sampled().score(matcher, *encoded, batch, None, False)
        assert losses == {}
        return rankings, jnp.diag(matcher(*pairs)), jnp.diag(matcher(mismatched.images, mismatched.texts))

    return on_one_device(lambda v: MODEL.apply(v, method=rank))(variables)


def test_sampled_negatives_rank_one_query_of_each_pair(variables):
    rankings, matching, mismatching = rank_sampled(variables)
    for direction, valid in (('i2t', REPLACED), ('t2i', ~REPLACED)):
        got = rankings[direction]
        np.testing.assert_allclose(got.scores, np.stack([matching, mismatching], axis=1), atol=1e-6)
        assert np.asarray(got.positives).tolist() == [[True, False]] * PAIRS
        np.testing.assert_array_equal(got.negatives, np.stack([np.zeros(PAIRS, bool), valid], axis=1))
        assert not got.inputs


def test_perturbed_captions_are_further_negatives_of_images():
    index = np.array([4, 7, 4])
    is_perturbed = np.array([True, False, True])
    images = np.arange(18, dtype=np.float32).reshape(3, 6)
    batch = Batch(np.int32(0), None, None, index, drawn={'perturbed': (Texts(None, None), is_perturbed)})
    source = perturbed('ignored', ('swap',))

    class Given(Scores):
        def encode_text(self, texts, train=False):
            return jnp.eye(6)[3:]

    texts = np.eye(6, dtype=np.float32)[:3]
    rankings = on_one_device(lambda t: source.score(Given(), jnp.asarray(images), t, batch, None, True)[0])(texts)
    np.testing.assert_array_equal(rankings['i2t'].scores, images)  # captions, then perturbed captions
    np.testing.assert_array_equal(rankings['i2t'].positives, np.eye(3, 6, dtype=bool))
    mismatch = index[:, None] != index
    np.testing.assert_array_equal(rankings['i2t'].negatives, np.hstack([mismatch, np.tile(is_perturbed, (3, 1))]))
    np.testing.assert_array_equal(rankings['t2i'].scores, images[:, :3].T)
    np.testing.assert_array_equal(rankings['t2i'].negatives, mismatch)


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


def chunked(scores, queries=2, train=True, **term):
    """The value of a term, its gradient and the rankings: in chunks, and of the whole batch."""
    terms = make_terms({'ranking': ALWAYS | term})
    batch = Batch(np.int32(0), None, None, np.array([0, 1, 1, 2, 3]))

    def value(source, scores):
        ranked, losses = source.score(Scores(0.3), jnp.eye(len(scores)), scores.T, batch, None, train)
        return objective(terms, ranked, 0, losses)[0], ranked

    chunks = candidates_source({'source': 'in_chunks', 'same_image': 'ignored', 'queries': queries}, terms)
    values = [functools.partial(value, source) for source in (chunks, in_batch_source('ignored'))]
    return [on_one_device(jax.value_and_grad(of_source, has_aux=True))(scores) for of_source in values]


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
    ((loss, _), gradient), ((want_loss, _), want) = chunked(SCORES, queries, **term)
    assert want_loss > 0.1
    chex.assert_trees_all_close((loss, gradient), (want_loss, want), rtol=1e-5, atol=1e-6)


def test_chunks_leave_the_match_and_the_hardest_negative():
    term = {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'reduction': 'sum'}
    ranked, want = (rankings for (_, rankings), _ in chunked(SCORES, **term))
    for way, ranking in want.items():
        match = hardest_positive(ranking.scores, ranking.positives)
        negative = hardest_negative(ranking.scores, ranking.negatives)
        np.testing.assert_allclose(ranked[way].scores, np.stack([match, negative], axis=1), rtol=1e-6)
        np.testing.assert_array_equal(ranked[way].positives, [[True, False]] * 5)
        np.testing.assert_array_equal(ranked[way].negatives, [[False, True]] * 5)


@pytest.mark.slow
def test_chunks_have_the_diagnostics_of_the_batch():
    term = {'loss': 'ranking.matching_cross_entropy', 'reduction': 'sum'}
    rankings = [ranked for (_, ranked), _ in chunked(jax.nn.sigmoid(SCORES), **term)]
    terms = make_terms({'ranking': ALWAYS | term})
    clean = jnp.asarray([True, False, True, True, False])
    chunks, want = (collapse_metrics(x, terms, 0) | noise_metrics(x, terms, 0, clean) for x in rankings)
    chex.assert_trees_all_close(chunks, want, rtol=1e-5)
    assert 0.1 < want['noise/t2i/gradient'] < 0.9


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
        chunked(SCORES, loss='ranking.adaptive_margin', reduction='sum')
    with pytest.raises(UserError, match="names 'i2i', which is not a ranking"):
        chunked(SCORES, loss='ranking.polynomial', margin=0.2, reduction='sum', rankings=('i2t', 'i2i'))


def test_sources_of_vectors_need_a_dual_encoder():
    chunks = candidates_source({'source': 'in_chunks', 'same_image': 'ignored', 'queries': 2})
    queue = candidates_source({'source': 'queue', 'same_image': 'ignored', 'encoder': 'target', 'length': 8})
    view = View({'target': (MATCHERS['saf'], {})}, None, {}, 0)
    with pytest.raises(UserError, match="'in_chunks' needs a dual encoder, not SGRAF: use 'in_batch'"):
        chunks.score(MATCHERS['saf'], None, None, None, None, True)
    with pytest.raises(UserError, match="'queue' needs a dual encoder, not SGRAF: use 'in_batch'"):
        queue.look(view, {'target': None})
