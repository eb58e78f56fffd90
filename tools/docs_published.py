"""Tables of the published numbers, for the page docs/published.md of the site."""

import collections
import re
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import results
from jitm.evaluation import published
from jitm.evaluation.published import Row

MARK = re.compile(r'<!-- published (\S+) -->')
DATASETS = {
    'f30k': 'Flickr30K',
    'coco': 'COCO',
    'cc152k': 'CC152K',
    'cc120k': 'CC120K',
    'urban1k': 'Urban1k',
    'sharegpt4v': 'ShareGPT4V',
    'sugarcrepe': 'SugarCrepe',
    'aro': 'ARO',
    'winoground': 'Winoground',
    'bivlc': 'BiVLC',
}
NOISY, LONG = ('cc152k', 'cc120k'), ('urban1k', 'sharegpt4v')
ZERO_SHOT = 'open_clip', 'MobileCLIP', 'SigLIP 2'  # how the sources of zero-shot results start
SECTIONS = 'retrieval', 'zero-shot', 'long-captions', 'noisy-captions', 'choices', 'analyses'
BOTH_WAYS = 'i2t/recall@1', 't2i/recall@1'


def section(row: Row) -> str:
    """Returns the section of the page that lists a row."""
    if row.protocol == 'choices':
        return 'choices'
    if 'mixed' in row.protocol or row.dataset in NOISY:
        return 'noisy-captions'
    if row.dataset in LONG:
        return 'long-captions'
    if any(source.startswith(ZERO_SHOT) for source in row.sources):
        return 'zero-shot'
    return 'retrieval' if row.protocol in published.PROTOCOLS[row.dataset] else 'analyses'


def presets_of(rows: Sequence[Row]) -> dict[int, list[str]]:
    """Returns the presets of the rows, by the identity of a row."""
    names = collections.defaultdict(list)
    for preset, keys in published.presets().items():
        for key in keys:
            for row in published.find(key, rows):
                names[id(row)].append(f'`{preset}`')
    return names


def cells(row: Row, columns: Sequence[str]) -> dict[str, str]:
    """Returns the metrics of a row: both R@1 and rsum, or those of the columns where none of the rows has recalls."""
    if columns:
        return {column: str(row.metrics.get(column, '')) for column in columns}
    recalls = ' / '.join(str(row.metrics[way]) for way in BOTH_WAYS if way in row.metrics)
    return {'R@1 i2t / t2i': recalls, 'rsum': str(row.metrics.get('rsum', ''))}


def table(rows: Sequence[Row], presets: Mapping[int, Sequence[str]]) -> Iterator[results.Row]:
    """Yields the lines of a table of rows of one protocol, in ascending order of the sum of both R@1, then of rsum."""
    keys = dict.fromkeys(key for row in rows for key in row.metrics)
    columns = () if keys.keys() & {*BOTH_WAYS, 'rsum'} else [*keys]

    def rank(row: Row) -> tuple[float, float]:
        return sum(row.metrics.get(way, 0) for way in BOTH_WAYS), row.metrics.get('rsum', 0)

    for row in sorted(rows, key=rank):
        yield {
            'system': ', '.join(filter(None, (row.system, row.backbone))).replace('*', r'\*'),
            'preset': ', '.join(presets.get(id(row), ())),
            **cells(row, columns),
            'models': published.MODELS[row.ensemble],
            'source': row.cited.replace('|', r'\|'),
        }


def tables(name: str) -> str:
    """Returns the tables of a section of the page, one for each data set and protocol."""
    rows = published.load()
    presets, groups = presets_of(rows), collections.defaultdict(list)
    for row in rows:
        if section(row) == name:
            groups[row.dataset, row.protocol].append(row)
    blocks = []
    for (dataset, protocol), page in groups.items():
        title = DATASETS[dataset] if protocol == 'choices' else f'{DATASETS[dataset]}, {protocol}'
        blocks += [f'### {title}', '', *results.markdown(table(page, presets)), '']
    return '\n'.join(blocks)


def filled(page: str) -> str:
    """Returns the page with the tables of each section behind its comment."""
    return MARK.sub(lambda mark: f'{mark[0]}\n\n{tables(mark[1])}', page)
