import re

import pytest

from experiments import tables
from jitm.errors import UserError
from tests.conftest import ROOT


def row(rsum, distance):
    metrics = dict.fromkeys(tables.BOTH_WAYS, rsum / 10) | {'rsum': rsum, 'mean_distance': distance}
    return {'metrics': metrics, 'rsum_by_epoch': [[0.0, 3.0], [1.0, rsum], [2.0, rsum - 1]], 'epochs': 2}


RUNS = {
    ('mean_sum', 0): row(270.0, 0.3),
    ('mean_sum', 1): row(272.0, 0.31),
    ('mean_max', 0): row(280.0, 0.4),
    ('mean_max', 1): row(282.2, 0.42),
    ('mean_max', 2): row(290.0, 0.4),
    ('mean_selhn', 1): row(280.0, 0.4),
}
INTERVAL = {'size': 'flickr8k_small', 'pair': 'mean_max - mean_sum', 'seed': 1, 'metric': 'rsum', 'low': -1, 'high': 21}
PAGE = """# Page

<!-- runs small mean_distance 1 last
mean_sum: the sum
mean_selhn: SelHN
-->

Text.

<!-- differences small i2t/recall@1
mean_max - mean_sum: max, sum
mean_selhn - mean_sum: SelHN, sum
-->
"""
TABLE = """
|  | R@1 i2t | R@1 t2i | MD | rsum, epoch 1 | rsum, last epoch | rsum | seeds |
|---|---|---|---|---|---|---|---|
| the sum | 27.2 | 27.2 | 0.31 | 272.0 | 271.0 | 272.0 | 1 |
| SelHN | 28.0 | 28.0 | 0.40 | 280.0 | 279.0 | 280.0 | 1 |

Text.
"""
DIFFERENCES = """
| difference in rsum | by seed (95 % over images) | mean | detectable | R@1 i2t | result |
|---|---|---|---|---|---|
| max, sum | +10.0; +10.2 (-1.0 to +21.0) | +10.1 ± 0.1 | 1.6 | +1.0 | two seeds |
| SelHN, sum | +8.0 | +8.0 |  | +0.8 | one seed |
"""


def rewritten(page):
    return tables.rewritten(page, lambda size: RUNS if size == 'flickr8k_small' else {}, [INTERVAL])


def test_tables_follow_their_comments():
    page = rewritten(PAGE)
    assert TABLE in page
    assert DIFFERENCES in page
    assert rewritten(page) == page
    assert rewritten(page.replace('281.0', '999.9')) == page


@pytest.mark.parametrize(
    'path', sorted([ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')]), ids=lambda path: path.stem
)
def test_rows_of_tables_have_the_cells_of_their_header(path):
    text = re.sub(r'^```.*?^```|(?<!`)`[^`\n]+`(?!`)|\\\|', '', path.read_text(), flags=re.DOTALL | re.MULTILINE)
    cells = None
    for line in text.splitlines():
        found = line.count('|') if line.startswith('|') else None
        assert cells is None or found in (None, cells), line
        cells = found


def test_names_are_those_of_runs_and_differences():
    assert tables.names(PAGE) == {'mean_sum', 'mean_selhn', 'mean_max'}
    assert tables.names('Text without tables.') == set()


@pytest.mark.parametrize(
    ('comment', 'message'),
    [
        ('runs small\nfc_max: GPO', 'fc_max has no row; train it'),
        ('runs full\nmean_max: max', 'mean_max has no row; train it'),
        ('runs small\nmean_max', "'mean_max' in a comment above a table; write NAME: LABEL"),
        ('differences small\nmean_sum - mean_max: less', 'mean_sum - mean_max: not a pair of experiments/intervals.py'),
        ('differences full\nmean_max - mean_sum: more', 'mean_max - mean_sum has no seed with rows of both'),
    ],
)
def test_unknown_runs_are_refused(comment, message):
    with pytest.raises(UserError, match=message):
        rewritten(f'<!-- {comment}\n-->\n')
