import re

import pytest

from benchmarks.results import DOCS
from experiments import comments, tables
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
    **{('mean_other', seed): row(270.0 + seed + (-1) ** seed, 0.3) for seed in range(3)},
}
PAGE = """# Page

## Max is better

<!-- runs small mean_distance 1
mean_sum: sum of hinges
* mean_max - mean_sum: max of hinges
-->

Text.

## SelHN

<!-- runs small open last less
* mean_selhn - mean_sum (5.0): SelHN
-->

## Nothing changes

<!-- runs small each equal
small mean_max: max of hinges
* mean_selhn - mean_max: SelHN
-->

## Equal

<!-- runs small
* mean_other - mean_sum: the same
-->
"""
MADE = """
**Confirmed** (3 seeds, q <0.001)

|  | R@1 i2t / t2i | MD | rsum, epoch 1 | rsum, 3 seeds | difference | q |
|---|---|---|---|---|---|---|
| sum of hinges | 27.1 / 27.1 | 0.30 ± 0.00 | 271.0 ± 1.0 | 271.0 ± 1.0 |  |  |
| max of hinges | 28.1 / 28.1 | 0.40 ± 0.00 | 281.1 ± 1.1 | 281.1 ± 1.1 | +10.1 ± 0.1 | <0.001 |

Text.
"""
OPEN = """
**Open** (1 seed)

|  | R@1 i2t / t2i | rsum, last epoch | rsum, 1 seed | difference |
|---|---|---|---|---|
| SelHN | 28.0 / 28.0 | 279.0 | 280.0 | +9.0 |
"""


EACH = """
**Open** (1 seed)

|  | R@1 i2t / t2i | seeds | rsum | difference | q |
|---|---|---|---|---|---|
| max of hinges | 28.2 / 28.2 | 4 | 281.6 ± 1.4 |  |  |
| SelHN | 28.0 / 28.0 | 1 | 280.0 | -1.1 |  |
"""
EQUAL = '\n**No difference** (3 seeds, 95 % interval [-2.5, +3.2])\n'
EVIDENCE = """
| finding | runs | split | seeds | difference | 95 % over seeds | 95 % over seeds and images | p | q |
|---|---|---|---|---|---|---|---|---|
| max | `mean_max - mean_sum` | dev | 3 | +10.1 ± 0.1 | +9.9 to +10.3 | - | <0.001 | <0.001 |
| one seed | `mean_selhn - mean_sum` | dev | 1 | +9.0 | - | - |  |  |
"""


def read(size):
    return RUNS if size == 'flickr8k_small' else {}


def adjusted(page):
    return tables.adjusted(comments.read_tables(page), read)


def rewritten(page):
    return tables.rewritten(page, read, adjusted(page))


def test_tables_follow_their_comments():
    page = rewritten(PAGE)
    assert MADE in page
    assert OPEN in page
    assert EACH in page
    assert EQUAL in page
    assert rewritten(page) == page
    assert rewritten(page.replace('281.1', '999.9').replace('Confirmed', 'Contradicted')) == page


def test_evidence_names_its_runs_split_and_test():
    comment = '<!-- runs small last each evidence\nmean_max - mean_sum: max\nmean_selhn - mean_sum: one seed\n-->\n'
    assert rewritten(comment) == comment + EVIDENCE


def test_verdicts_are_listed_with_links_to_their_sections():
    rows = tables.verdicts({'vsepp': PAGE, 'tags': '# Title\n\n## Section\n'}, read, adjusted(PAGE))
    assert [' | '.join(map(str, row.values())) for row in rows] == [
        '**[Faghri et al. 2018](vsepp.md)** |  |  |  |  | ',
        '[Max is better](vsepp.md#max-is-better) | confirmed | \N{UPWARDS ARROW} | +10.1 ± 0.1 | 3 | <0.001',
        '[SelHN](vsepp.md#selhn) | open | (\N{DOWNWARDS ARROW}) | +9.0 | 1 | ',
        '[Nothing changes](vsepp.md#nothing-changes) | open |  | -1.1 | 1 | ',
        '[Equal](vsepp.md#equal) | no\N{NO-BREAK SPACE}difference | (\N{UPWARDS ARROW}) | '
        '+0.3 ± 1.2 [-2.5, +3.2] | 3 | 0.67',
        '**[Fan et al. 2022](tags.md)** | not tested at this size |  |  |  | ',
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
    assert comments.names(PAGE) == {'mean_sum', 'mean_selhn', 'mean_max', 'mean_other'}
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
