import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.config import names
from jitm.errors import UserError
from jitm.training.objective import objective
from jitm.types import Ranking, TokenPredictions
from tests.support.steps import HARDEST, make_terms

RANKINGS = {name: Ranking(jnp.eye(4), jnp.eye(4, dtype=bool), ~jnp.eye(4, dtype=bool)) for name in ('i2t', 't2i')}


def term(**changes):
    """The terms of a config; None leaves a key out."""
    keys = HARDEST | changes
    return {'ranking': {key: value for key, value in keys.items() if key == 'end_epoch' or value is not None}}


WORDS = {'loss': 'tokens.word_discrimination', 'margin': None, 'match_weight': 0.11}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'margn': 1}, "'terms.ranking.margn' is unknown, did you mean 'margin'"),
        ({'start_epoch': 2, 'end_epoch': 2}, "'terms.ranking.end_epoch' is 2, not above start_epoch 2: raise it, or"),
        ({'reduction': 'max'}, "'terms.ranking.reduction' is 'max'; use one of sum, mean"),
        ({'loss': 'tokens.captionin'}, "has no 'captionin', did you mean 'captioning'"),
        ({'loss': 'tokens.captioning'}, "'terms.ranking.margin' is unknown; known are "),
        ({'predictions': 'captioning'}, "'terms.ranking.predictions' is unknown"),
        ({'loss': 'ranking.adaptive_margin', 'margin': None, 'relevance': 0.2}, "'terms.ranking.relevance' is unknown"),
        (WORDS | {'match_weight': None}, "'terms.ranking.match_weight' is missing"),
        (WORDS | {'match_weight': 'low'}, "'terms.ranking.match_weight' is 'low'; it must be a number"),
        (WORDS | {'mask': 1}, "'terms.ranking.mask' is unknown"),
    ],
)
def test_wrong_term_names_its_key(changes, message):
    with pytest.raises(UserError, match=message):
        make_terms(term(**changes))


def test_loss_without_anchor_is_refused(monkeypatch):
    from jitm.losses import ranking

    def relative(scores, positives, negatives, *, anchor_scores):
        return scores[:, 0]

    relative.__module__ = ranking.__name__
    monkeypatch.setattr(ranking, 'relative', relative, raising=False)
    with pytest.raises(UserError, match='needs anchor_scores'):
        objective(make_terms(term(loss='ranking.relative', margin=None)), RANKINGS, 0)


def test_loss_without_relevance_is_refused():
    terms = make_terms(term(loss='ranking.adaptive_margin', margin=None))
    with pytest.raises(UserError, match=r"'terms.ranking' needs relevance"):
        objective(terms, RANKINGS, 0)
    with_relevance = {name: ranking.with_inputs(relevance=ranking.scores) for name, ranking in RANKINGS.items()}
    for made in (terms, make_terms(term())):
        assert np.isfinite(objective(made, with_relevance, 0)[0])


@pytest.mark.parametrize(
    ('key', 'keywords'),
    [
        ('temperature', {'loss': 'ranking.softmax_contrastive'}),
        ('bias', {'loss': 'ranking.sigmoid_contrastive', 'temperature': 0.5}),
    ],
)
def test_a_number_is_set_or_learned(key, keywords):
    learned = make_terms(term(margin=None, **keywords))
    fixed = make_terms(term(margin=None, **keywords, **{key: 0.25}))
    with pytest.raises(UserError, match=f"'terms.ranking' needs {key}"):
        objective(learned, RANKINGS, 0)
    assert (learned['ranking'].inputs, fixed['ranking'].inputs) == ([key], [])
    ranking = RANKINGS['i2t'].with_inputs(**{key: jnp.float32(0.25)})
    values = [made['ranking'].per_query(ranking) for made in (learned, fixed)]
    np.testing.assert_allclose(*values, rtol=1e-6)


def test_token_term_passes_its_arguments():
    predictions = TokenPredictions(jnp.zeros((1, 2, 2)), jnp.asarray([[0, 1]]), jnp.ones((1, 2), bool))
    got = make_terms(term(**WORDS))['ranking'].per_text(predictions)
    np.testing.assert_allclose(got, 1.11 * np.log(2) / 2, rtol=1e-6)


def test_empty_terms_are_refused():
    with pytest.raises(UserError, match="'terms' is empty"):
        make_terms({})


def matrix(scores, positives, negatives):
    return scores


def total(scores, positives, negatives):
    return jnp.sum(scores)


def pair(scores, positives, negatives):
    return scores[0], scores[1]


def booleans(scores, positives, negatives):
    return scores[:, 0] > 0


def with_indices(scores, positives, negatives):
    return scores[negatives].sum()


def with_mistake(scores, positives, negatives):
    return scores.maximum(0)


def with_assignment(scores, positives, negatives):
    scores[0, 0] = 1
    return scores[0]


def with_range(scores, positives, negatives):
    return jnp.ones(len(range(scores.sum())))


def with_numpy(scores, positives, negatives):
    return np.maximum(np.asarray(scores), 0).sum(axis=1)


def with_if(scores, positives, negatives):
    return jnp.ones(len(scores)) if scores[0, 0] > 0 else jnp.zeros(len(scores))


@pytest.mark.parametrize(
    ('loss', 'sentence'),
    [
        (matrix, r"'terms.ranking' returns float32 of shape \(4, 4\) for 4 queries; .* of shape \(4,\)"),
        (total, r"'terms.ranking' returns float32 of shape \(\) for 4 queries"),
        (pair, "'terms.ranking' returns tuple for 4 queries"),
        (booleans, r"'terms.ranking' returns bool of shape \(4,\) for 4 queries; a loss returns one float"),
        (with_indices, r'test_terms.py: return scores\[negatives\].sum\(\): .*; use .* or boolean indices'),
        (
            with_mistake,
            r"'terms.ranking.loss' is 'ranking.new', but it fails: AttributeError in .*: return scores.maximum\(0\): ",
        ),
        (with_assignment, r'TypeError in line \d+ of .*test_terms.py: scores\[0, 0\] = 1: '),
        (with_range, r'TypeError in line \d+ of .*test_terms.py: return jnp.ones.*: '),
        (with_numpy, r'in line \d+ of .*test_terms.py: return np.maximum\(.*; use jax.numpy instead of numpy'),
        (
            with_if,
            r'in line \d+ of .*test_terms.py: return .* if scores\[0, 0\] > 0 .*, and jnp.where instead of if',
        ),
    ],
)
def test_losses_of_another_form_are_refused(monkeypatch, loss, sentence):
    monkeypatch.setattr(names, 'resolve', lambda *arguments, **options: loss)
    keys = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
    terms = make_terms({'ranking': {'loss': 'ranking.new', **keys}})
    with pytest.raises(UserError, match=sentence):
        jax.eval_shape(lambda rankings: objective(terms, rankings, 0), RANKINGS)
