"""docs/losses.md lists every loss, with names that lead from papers to functions and from presets to both."""

import re

import pytest

from jitm import configs, losses
from jitm.commands import settings
from tests.conftest import ROOT
from tests.support.score_cases import ROWS


def test_the_table_has_every_public_loss():
    assert {name.partition('.')[2] for _, name, *_ in ROWS} == set(losses.__all__)


@pytest.mark.parametrize(('paper', 'name', 'link', 'reduction', 'preset'), ROWS, ids=[row[0] for row in ROWS])
def test_a_name_leads_to_its_function_and_preset(paper, name, link, reduction, preset):
    module, _, function = name.partition('.')
    loss = getattr(losses, function)
    assert link == f'../jitm/losses/{module}.py'
    assert loss.__module__ == f'jitm.losses.{module}'
    for symbol in paper.split(', '):
        assert symbol.lower() in loss.__doc__.lower()
    terms = [term for term in configs.load(preset).terms.to_dict().values() if term['loss'] == name]
    assert terms
    assert all(term['reduction'] in reduction for term in terms)


def test_the_walk_to_the_gradient_shows_lines_of_the_config():
    page = (ROOT / 'docs' / 'boosting.md').read_text()
    words, lines = re.search(r'`jitm settings --show (\S+)`.*?^```\n(.*?)^```', page, re.DOTALL | re.MULTILINE).groups()
    assert set(lines.splitlines()) <= set(settings.show(configs.load(words).to_dict()))
