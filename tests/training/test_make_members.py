import pytest

from jitm.errors import UserError
from tests.support.steps import make_members

FROZEN = {'rule': 'frozen', 'init_from': 'run'}
AVERAGE = {'rule': 'ema', 'of': 'a', 'momentum': 0.9}


@pytest.mark.parametrize(
    ('configs', 'message'),
    [
        ({}, "'members' has no member with rule 'gradient'"),
        ({'a': FROZEN}, "'members' has no member with rule 'gradient'; one must train"),
        ({'a': {'momentum': 0.9}}, "'members.a.momentum' is unknown"),
        ({'a': {'rule': 'gradent'}}, "'members.a.rule' is 'gradent'; use one of gradient, frozen, ema"),
        (
            {'a': {}, 'b': {'learn_from': ('a', 'a')}},
            r"'members.b.learn_from' is \('a', 'a'\); give a tuple of names, each once",
        ),
        (
            {'a': {}, 'b': {'learn_from': ('aa',)}},
            "'members.b.learn_from' names 'aa', which is not another member, did you mean 'a'",
        ),
        ({'a': {'learn_from': ('a',)}}, "'members.a.learn_from' names 'a', which is not another member"),
        (
            {'a': {}, 'b': FROZEN | {'learn_from': ('a',)}},
            "'members.b.learn_from' must be empty: this member does not train",
        ),
        ({'a': {}, 'b': {'rule': 'frozen'}}, "'members.b.init_from' is missing; set it to a run directory"),
        ({'a': {}, 'b': {'rule': 'ema', 'momentum': 0.9}}, "'members.b.of' is missing"),
        ({'a': {}, 'b': AVERAGE | {'of': 'x'}}, "'members.b.of' names 'x', which is not another member"),
        ({'a': {}, 'b': FROZEN, 'c': AVERAGE | {'of': 'b'}}, "'members.c.of' names 'b', which does not train"),
        ({'a': {}, 'b': AVERAGE | {'init_from': 'run'}}, "'members.b' must have no model and no init_from"),
    ],
)
def test_wrong_members_are_refused(configs, message):
    with pytest.raises(UserError, match=message):
        make_members(configs)
