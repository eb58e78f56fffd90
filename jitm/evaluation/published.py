"""Published results to compare with, and the presets that reproduce them: `published.json`.

The rows are the result tables of Chen et al. (2020, AOQ), Fan et al. (2022, TAGS-DC), Diao et al. (2024, DBL), Faghri
et al. (2018, VSE++) and Li et al. (2023, SelHN), the tables with noise of Huang et al. (2021, NCR), Qin et al. (2022,
DECL), Hu et al. (2023, RCL) and Zhang et al. (2024, NPC), numbers from the READMEs of released code, also with long
captions, and results on the tests that `jitm choices` reads. Numbers are as printed; the `note` of
a row states caveats. Rows that repeat the same numbers are one row with several sources. Table 10 of Li et al. is left
out: it is labelled COCO 1K but repeats the Flickr30K numbers of table 3.
"""

import dataclasses
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitm.errors import UserError
from jitm.pages import tables

TEST_SPLITS = ('test', 'testall')  # the field's names; in its COCO folder `test` is the first fold of `testall`
RECALLS = ('i2t/recall@1', 'i2t/recall@5', 'i2t/recall@10', 't2i/recall@1', 't2i/recall@5', 't2i/recall@10')
HEADER = ('system', 'i2t R@1', 'R@5', 'R@10', 't2i R@1', 'R@5', 'R@10', 'rsum', 'models', 'backbone', 'source')
MODELS = {True: 'ensemble', False: 'single', None: '-'}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """The test images and texts that are ranked together, and the number of such folds whose metrics are averaged."""

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
    'cc152k': {'1K': Protocol(1000, 1000, 1)},
    'cc120k': {'1K': Protocol(1000, 1000, 1)},
    'urban1k': {'1K': Protocol(1000, 1000, 1)},
    'sharegpt4v': {'10K': Protocol(10000, 10000, 1)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One published result.

    Attributes:
      system: Its name, with the loss or variant.
      dataset: A key of `PROTOCOLS`, or a test that `jitm choices` reads.
      protocol: A key of `PROTOCOLS[dataset]`, with the noise of the training captions if some were mixed (`1K, 20 % of
        captions mixed`), or another measurement (`choices`, the analyses of TAGS-DC).
      ensemble: Whether several models were averaged; None if no source states it.
      sources: The tables that print these numbers.
      metrics: In percent, with the keys of our reports; unpublished metrics are absent.
      backbone: Image features, training images and text encoder, as far as they are stated.
      note: Caveats about the row.
    """

    system: str
    dataset: str
    protocol: str
    ensemble: bool | None
    sources: Sequence[str]
    metrics: Mapping[str, float]
    backbone: str = ''
    note: str = ''

    @property
    def cited(self) -> str:
        """Its sources, with the note."""
        return ', '.join(self.sources) + (f' ({self.note})' if self.note else '')


# The key of a row, or of one per protocol: system, data set, source and, if these have several, the backbone.
RowKey = tuple[str, ...]
Presets = dict[str, list[RowKey]]


def _read() -> dict[str, Any]:
    return json.loads(importlib.resources.files(__package__).joinpath('published.json').read_text(encoding='utf-8'))


def load() -> list[Row]:
    """Reads all published rows."""
    return [Row(**row) for row in _read()['rows']]


def presets() -> Presets:
    """Reads the name of every preset, as for `--config` -> the keys of its rows; none if nothing is published."""
    return {name: list(map(tuple, keys)) for name, keys in _read()['presets'].items()}


def find(key: RowKey, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with a key: one, or one for each protocol."""
    system, dataset, source, *backbone = key
    return [
        row
        for row in rows
        if (row.system, row.dataset) == (system, dataset) and source in row.sources and backbone in ([], [row.backbone])
    ]


def matching(
    rows: Sequence[Row], protocol: Mapping[str, Any], systems: Sequence[str] = (), noise: str = ''
) -> list[Row]:
    """Selects the published rows that follow the same protocol as an evaluation.

    Args:
      rows: Published rows.
      protocol: The protocol of the evaluation's report: `data`, `dataset`, `split`, `images`, `texts` and `folds`.
      systems: Substrings of the names of systems to keep, case-insensitive; () keeps all.
      noise: The noise of the training captions, see `jitm.data.pairs.noise.name`; '' for none.

    Returns:
      The rows, in their order.

    Raises:
      UserError: If the data set has no published rows or is unknown, the split is not a test split, the protocol or the
        noise is not a published one, or no system has such a name.
    """
    data = protocol['data']
    dataset = protocol['dataset']
    if not dataset:
        raise UserError(
            f'{data} does not say which data set it is, so it cannot be compared; if its folder holds the features '
            f'of one of {", ".join(PROTOCOLS)}, write that name into the file dataset.txt there'
        )
    if dataset not in PROTOCOLS:
        protocols = ', '.join(PROTOCOLS)
        raise UserError(
            f"{data} is a split of the data set '{dataset}', but published rows are available for {protocols}"
        )
    if protocol['split'] not in TEST_SPLITS:
        raise UserError(f'{data} is not a test split, but published rows are for test images: use --split test')
    ours = Protocol(protocol['images'], protocol['texts'], protocol['folds'])
    names = {published: name for name, published in PROTOCOLS[dataset].items()}
    if ours not in names:
        protocols = '; '.join(f'{name}: {_counts(published)}' for published, name in names.items())
        raise UserError(f'{data} with {_counts(ours)} is not a published protocol of {dataset}; known are {protocols}')
    name = ', '.join(filter(None, (names[ours], noise)))
    rows = [row for row in rows if (row.dataset, row.protocol) == (dataset, name)]
    if not rows:
        raise UserError(
            f'no results of {dataset}, {name}, are published; jitm settings noisy lists the published noise'
        )
    for system in systems:
        if not any(system.lower() in row.system.lower() for row in rows):
            raise UserError(f"no row of {dataset}, {name}, has the system '{system}'; published.json lists the names")
    pattern = re.compile('|'.join(map(re.escape, systems)), re.IGNORECASE)
    return [row for row in rows if pattern.search(row.system)]


def comparison(report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Returns a table of our result, followed by published ones in descending order of the sum of both R@1.

    Args:
      report: The report of our evaluation, with `metrics` and `protocol`.
      rows: Published rows that match its protocol.

    Returns:
      A Markdown table of R@1, R@5 and R@10 from image to text and from text to image, and rsum, in percent; '-' for
      unpublished numbers.
    """
    runs = report['protocol']['runs']
    ours = Row(
        system='ours, re-ranked' if 'shortlist' in report['protocol'] else 'ours',
        dataset=report['protocol']['dataset'],
        protocol='',
        ensemble=len(runs) > 1,
        sources=[run['workdir'] for run in runs],
        metrics=report['metrics'],
    )

    def first_recalls(row: Row) -> tuple[float, float]:
        # Nearly every row has both R@1, few have all six recalls; the others sort by rsum.
        return sum(row.metrics.get(key, 0.0) for key in (RECALLS[0], RECALLS[3])), row.metrics.get('rsum', 0.0)

    lines = []
    for row in (ours, *sorted(rows, key=first_recalls, reverse=True)):
        numbers = (f'{row.metrics[key]:.1f}' if key in row.metrics else '-' for key in (*RECALLS, 'rsum'))
        lines.append((row.system, *numbers, MODELS[row.ensemble], row.backbone or '-', row.cited))
    return tables.table(HEADER, lines)


def _counts(protocol: Protocol) -> str:
    folds = '1 fold' if protocol.folds == 1 else f'{protocol.folds} folds'
    return f'{folds} of {protocol.images} images and {protocol.texts} texts'
