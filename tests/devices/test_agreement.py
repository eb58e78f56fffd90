"""What the processes of a job must have in common."""

import pytest

from jitm.devices import agreement
from jitm.errors import UserError


@pytest.fixture
def two(monkeypatch):
    """Makes this process the first of two, of which the other gathers the given values."""

    def gather(*others):
        remaining = list(others)
        monkeypatch.setattr(agreement, 'gather', lambda value: [value, remaining.pop(0)])

    return gather


def test_one_process_agrees_with_itself():
    agreement.check_same({'seed': 0})
    assert agreement.in_first(lambda: 3) == agreement.in_all(lambda: 3) == 3


def test_differences_are_named(two):
    two({'seed': 0, 'a': 1})
    agreement.check_same({'seed': 0, 'a': 1})
    two({'seed': 3, 'b': 1, 'same': 2})
    message = (
        "'a' is 1 in process 0 and absent in process 1; 'b' is absent in process 0 and 1 in process 1; 'seed' is 0 in"
    )
    with pytest.raises(UserError, match=message):
        agreement.check_same({'seed': 0, 'a': 1, 'same': 2})
    two(dict.fromkeys('abcde', 1))
    with pytest.raises(
        UserError, match="'c' is 2 in process 0 and 1 in process 1, and 2 more: start all processes with"
    ):
        agreement.check_same(dict.fromkeys('abcde', 2))


def test_error_of_one_process_is_one_of_all(two):
    def fail():
        raise UserError('there is no room')

    two(None, None)
    with pytest.raises(UserError, match=r'^there is no room$'):
        agreement.in_all(fail)
    two('there is no room', None)
    with pytest.raises(UserError, match=r'^process 1 cannot start: there is no room$'):
        agreement.in_all(lambda: 1)


def test_file_of_another_host_may_be_seen_late(monkeypatch):
    answers = [False, False, True]
    assert agreement.sees(lambda: answers.pop(0))
    monkeypatch.setattr(agreement, 'VISIBLE', 0)
    assert not agreement.sees(lambda: False)
