"""Published results to stand beside ours: `published.json`, one row per line, and the protocols they follow.

The rows are those of the result tables of AOQ (Chen, Deng and Luo, ECCV 2020), TAGS-DC (Fan et al., AAAI 2022), DBL
(Diao et al.), VSE++ (Faghri et al., 2018) and SelHN (Li et al.), and figures of the READMEs of released code. Numbers
are as printed; a doubt about one stands in the row's `note`. Rows that repeat the same numbers are one row with
several sources. Table 10 of SelHN is left out: under the caption COCO 1K it repeats the Flickr30K numbers of table 3.
"""

import dataclasses
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jitm.errors import UserError
from jitm.metrics import RECALLS_AT

TEST_SPLITS = ('test', 'testall')  # the field's names; in its COCO folder `test` is the first fold of `testall`
RECALLS = tuple(f'{direction}/recall@{k}' for direction in ('i2t', 't2i') for k in RECALLS_AT)
MODELS = {True: 'ensemble', False: 'single', None: '-'}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How many test images and texts are ranked at a time, and the mean of how many such folds is reported."""

    images: int
    texts: int
    folds: int


PROTOCOLS = {
    'coco': {
        '5K': Protocol(5000, 25000, 1),
        '1K, 5 folds': Protocol(1000, 5000, 5),
        '1K, 1 fold': Protocol(1000, 5000, 1),
    },
    'f30k': {'1K': Protocol(1000, 5000, 1)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One published result.

    Attributes:
      system: with its loss or variant.
      dataset: `coco` or `f30k`.
      protocol: a name in `PROTOCOLS[dataset]`, or what else was measured (the analyses of TAGS-DC).
      ensemble: whether several models were averaged; None where no source says so.
      sources: where these numbers are printed.
      metrics: in percent, with the keys of our reports; what was not published is absent.
      backbone: image features, training images and text encoder, as far as they are told.
      note: what to know before trusting the row.
    """

    system: str
    dataset: str
    protocol: str
    ensemble: bool | None
    sources: Sequence[str]
    metrics: Mapping[str, float]
    backbone: str = ''
    note: str = ''


def load() -> list[Row]:
    """Reads all published rows."""
    text = importlib.resources.files('jitm').joinpath('published.json').read_text(encoding='utf-8')
    return [Row(**row) for row in json.loads(text)]


def matching(rows: Sequence[Row], protocol: Mapping[str, Any], systems: Sequence[str] = ()) -> list[Row]:
    """Selects the rows that were measured as an evaluation of ours was.

    Args:
      rows: published rows.
      protocol: of the evaluation's report: `data`, `dataset`, `split`, `images`, `texts` and `folds`.
      systems: parts of the systems' names to keep, in any case; () keeps all.

    Raises:
      UserError: if the evaluation is of another or an unknown data set, not of test images, or follows no published
        protocol, or if there is no such system.
    """
    data, dataset = protocol['data'], protocol['dataset']
    if not dataset:
        raise UserError(
            f'{data} does not say which data set it is, so it is compared with none; if its folder holds the features '
            f'of {" or ".join(PROTOCOLS)}, write that name into the file dataset.txt there'
        )
    if dataset not in PROTOCOLS:
        raise UserError(f"{data} is of the data set '{dataset}', but published rows are of {' and '.join(PROTOCOLS)}")
    if protocol['split'] not in TEST_SPLITS:
        raise UserError(f'{data} is no test split, but published rows are of test images: take --split test')
    ours = Protocol(*(protocol[field.name] for field in dataclasses.fields(Protocol)))
    name = next((name for name, published in PROTOCOLS[dataset].items() if published == ours), None)
    if name is None:
        known = '; '.join(f'{name}: {_counts(published)}' for name, published in PROTOCOLS[dataset].items())
        raise UserError(f'{data} with {_counts(ours)} is no published protocol of {dataset}; these are: {known}')
    rows = [row for row in rows if (row.dataset, row.protocol) == (dataset, name)]
    for system in systems:
        if not any(_is(row, system) for row in rows):
            raise UserError(f"no row of {dataset}, {name}, is of '{system}'; the names stand in jitm/published.json")
    return [row for row in rows if not systems or any(_is(row, system) for system in systems)]


def comparison(report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A table of our result, then published ones from the best to the worst sum of both R@1.

    Args:
      report: of our evaluation, with `metrics` and `protocol`.
      rows: published rows that match its protocol.

    Returns:
      Lines of R@1, R@5 and R@10 from image to text and from text to image, and rsum, in percent; '-' for what was not
      published.
    """
    runs = report['protocol']['runs']
    ours = Row(
        system='ours, re-ranked' if 'proposals' in report['protocol'] else 'ours',
        dataset=report['protocol']['dataset'],
        protocol='',
        ensemble=len(runs) > 1,
        sources=[run['workdir'] for run in runs],
        metrics=report['metrics'],
    )
    header = ('', 'i2t R@1', 'R@5', 'R@10', 't2i R@1', 'R@5', 'R@10', 'rsum', 'models', 'backbone', 'source')
    lines = [header, *map(_cells, (ours, *sorted(rows, key=_first_recalls, reverse=True)))]
    sides = '<' + '>' * (len(RECALLS) + 1) + '<' * 3
    columns = zip(sides, zip(*lines, strict=True), strict=True)
    form = '  '.join(f'{{:{side}{max(map(len, cells))}}}' for side, cells in columns)
    return '\n'.join(form.format(*cells).rstrip() for cells in lines)


def _counts(protocol: Protocol) -> str:
    folds = '1 fold' if protocol.folds == 1 else f'{protocol.folds} folds'
    return f'{folds} of {protocol.images} images and {protocol.texts} texts'


def _is(row: Row, system: str) -> bool:
    return system.lower() in row.system.lower()


def _first_recalls(row: Row) -> tuple[float, float]:
    """Nearly every row has both R@1, few have all six recalls; the others come last, by rsum."""
    metrics = {'i2t/recall@1': 0.0, 't2i/recall@1': 0.0, 'rsum': 0.0} | dict(row.metrics)
    return metrics['i2t/recall@1'] + metrics['t2i/recall@1'], metrics['rsum']


def _cells(row: Row) -> list[str]:
    numbers = [f'{row.metrics[key]:.1f}' if key in row.metrics else '-' for key in (*RECALLS, 'rsum')]
    source = ', '.join(row.sources) + (f' ({row.note})' if row.note else '')
    return [row.system, *numbers, MODELS[row.ensemble], row.backbone or '-', source]
