import re

import pytest

from benchmarks.results import DOCS
from experiments import comments, intervals, tables
from jitm.errors import UserError
from jitm.report.significance import p_value
from tests.conftest import ROOT


def row(rsum, distance):
    metrics = dict.fromkeys(tables.BOTH_WAYS, rsum / 10) | {'rsum': rsum, 'mean_distance': distance}
    return {'metrics': metrics, 'rsum_by_epoch': [[0.0, 3.0], [1.0, rsum], [2.0, rsum - 1]], 'epochs': 2}


RUNS = {
    **{('mean_sum', seed): row(270.0 + seed, 0.3) for seed in range(3)},
    **{('mean_max', seed): row(280.0 + 1.1 * seed, 0.4) for seed in range(4)},
    ('mean_selhn', 1): row(280.0, 0.4),
}
INTERVAL = {'size': 'flickr8k_small', 'pair': 'mean_max - mean_sum', 'metric': 'rsum', 'low': -1, 'high': 21}
STORED = {('flickr8k_small', INTERVAL['pair'], seed, 'rsum'): INTERVAL for seed in (1, intervals.ALL)}
PAGE = """# Page

## Max is better

<!-- runs small mean_distance 1
mean_sum: sum of hinges
* mean_max - mean_sum: max of hinges
-->

Text.

## SelHN

<!-- runs small open last
mean_selhn - mean_sum (5.0): SelHN
-->
"""
MADE = """
**Confirmed** (3 seeds, q <0.001)

|  | R@1 i2t / t2i | MD | rsum, epoch 1 | rsum, 3 seeds | difference | p | q |
|---|---|---|---|---|---|---|---|
| sum of hinges | 27.1 / 27.1 | 0.30 ± 0.00 | 271.0 ± 1.0 | 271.0 ± 1.0 |  |  |  |
| max of hinges | 28.1 / 28.1 | 0.40 ± 0.00 | 281.1 ± 1.1 | 281.1 ± 1.1 | +10.1 ± 0.1 | <0.001 | <0.001 |

<details markdown="1"><summary>By seed, with intervals of 95 % over the images</summary>

|  | seed 0 | seed 1 | seed 2 | detectable |
|---|---|---|---|---|
| max of hinges | +10.0 | +10.1 [-1.0, +21.0] | +10.2 | 0.3 [-1.0, +21.0] |

</details>

Text.
"""
OPEN = """
**Open** (1 seed)

|  | R@1 i2t / t2i | rsum, last epoch | rsum, 1 seed | difference |
|---|---|---|---|---|
| SelHN | 28.0 / 28.0 | 279.0 | 280.0 | +9.0 |
"""


def read(size):
    return RUNS if size == 'flickr8k_small' else {}


def rewritten(page):
    return tables.rewritten(page, read, tables.adjusted(comments.read_tables(page), read), STORED)


def test_tables_follow_their_comments():
    page = rewritten(PAGE)
    assert MADE in page
    assert OPEN in page
    assert rewritten(page) == page
    assert rewritten(page.replace('281.1', '999.9').replace('Confirmed', 'Contradicted')) == page


def test_verdicts_are_listed_with_links_to_their_sections():
    page = rewritten(PAGE)
    assert [[*row.values()] for row in tables.verdicts({'vsepp': page})] == [
        ['**Faghri et al. 2018**', '', '', ''],
        ['[Max is better](vsepp.md#max-is-better)', 'confirmed', '3', '<0.001'],
        ['[SelHN](vsepp.md#selhn)', 'open', '1', ''],
    ]


def test_q_is_adjusted_for_all_tests():
    lines = ('mean_max - mean_sum: a', 'mean_sum - mean_max: b', 'mean_max - mean_max: c')
    page = '<!-- runs small\n' + '\n'.join(lines) + '\n-->\n'
    found = {test[2]: q for test, q in tables.adjusted(comments.read_tables(page), read).items()}
    p = p_value([10.0, 10.1, 10.2])
    assert found == pytest.approx(
        {'mean_max - mean_sum': 1.5 * p, 'mean_sum - mean_max': 1.5 * p, 'mean_max - mean_max': 1.0}
    )


@pytest.mark.parametrize('path', sorted([ROOT / 'README.md', *DOCS.rglob('*.md')]), ids=lambda path: path.stem)
def test_rows_of_tables_have_the_cells_of_their_header(path):
    text = re.sub(r'^```.*?^```|(?<!`)`[^`\n]+`(?!`)|\\\|', '', path.read_text(), flags=re.DOTALL | re.MULTILINE)
    cells = None
    for line in text.splitlines():
        found = line.count('|') if line.startswith('|') else None
        assert cells is None or found in (None, cells), line
        cells = found


def test_names_are_those_of_runs_and_differences():
    assert comments.names(PAGE) == {'mean_sum', 'mean_selhn', 'mean_max'}
    assert comments.names('Text without tables.') == set()


@pytest.mark.parametrize(
    ('comment', 'message'),
    [
        ('runs small\nfc_max: GPO', 'fc_max has no row; train it'),
        ('runs full\nmean_max: max', 'mean_max has no row; train it'),
        ('runs small\nmean_max', "'mean_max' in a comment above a table; write NAME: LABEL"),
        ('runs small\nmean_selhn: a\nmean_zero: b', 'mean_selhn, mean_zero have no seed in common'),
    ],
)
def test_tables_without_rows_are_errors(comment, message, monkeypatch):
    monkeypatch.setitem(RUNS, ('mean_zero', 0), row(270.0, 0.3))
    with pytest.raises(UserError, match=message):
        rewritten(f'<!-- {comment}\n-->\n')
