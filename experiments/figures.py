"""The figures of docs/results and noise.md: rsum of stored rows, as SVG that follows the light or dark scheme."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.results import DOCS
from experiments import catalog
from jitm.pages.figures import drawing_in_ink, new_figure, svg

SCHEMES = '<style>:root{color:#333}@media(prefers-color-scheme:dark){:root{color:#ccc}}</style>'
COLORS = '#4a90d9', '#e8961e', '#d9534f', '#2fa58a', '#a06cd5', '#8c8c8c'  # visible in both
# Name -> label of the x axis, and of each line {x: experiment}, or the one experiment whose rsum by epoch it shows.
FIGURES = {
    'negatives': (
        'number of negatives',
        {
            'max of hinges': {n: f'mean_max_n{n}' for n in (2, 4, 8, 16, 32, 64, 127)},
            'sum of hinges, all 127': dict.fromkeys((2, 127), 'mean_sum'),
        },
    ),
    'plateau': (
        'epoch',
        {
            'VSE(MLP), SelHN': 'mlp_selhn',
            'VSE(MLP), max of hinges': 'mlp_max',
            'RVSE(MLP), SelHN': 'rvse_selhn',
            'RVSE(MLP), max of hinges': 'rvse_max',
        },
    ),
    'networks': (
        'epoch',
        {
            'SGR': 'nine_sgr',
            'NAAF': 'nine_naaf',
            'SCAN, text to image': 'nine_scan_t2i',
            'SCAN, max of hinges from the first step': 'nine_scan_t2i_first',
            'VSE-infinity': 'nine_vse_infinity',
            'VSE++': 'nine_mean',
        },
    ),
    'temperatures': (
        'temperature of softmax, or margin of the hinges',
        {
            'softmax': {t / 100: f'mean_softmax_t{t:02}' for t in (2, 3, 7, 10, 15, 20)} | {0.05: 'mean_softmax'},
            'SelHN': {0.2: 'mean_selhn'} | {m / 100: f'mean_selhn_m{m}' for m in (30, 40, 50)},
            'max of hinges with warm-up': {0.2: 'mean_sum_max'} | {m / 100: f'mean_sum_max_m{m}' for m in (30, 40, 50)},
        },
    ),
    'batches': (
        'batch size',
        {
            name: {size: f'mean_{loss}_steps_b{size}' for size in (64, 128, 256)}
            for name, loss in (('max of hinges', 'max'), ('SelHN', 'selhn'), ('softmax, temperature 0.05', 'softmax'))
        }
        | {
            'softmax, 0.07': {size: f'mean_softmax_t07_steps_b{size}' for size in (64, 128)},
            'softmax, 0.07, queue of 4,096': {size: f'mean_queue4096_steps_b{size}' for size in (64, 128)},
        },
    ),
    'noise': (
        'mismatched captions, %',
        {
            name: {0: f'mean_{loss}'} | {rate: f'noise{rate}_{loss}' for rate in (20, 40, 60)}
            for name, loss in (
                ('CRCL', 'crcl'),
                ('RCL', 'rcl'),
                ('softmax, temperature 0.05', 'softmax'),
                ('SelHN', 'selhn'),
                ('max of hinges with warm-up', 'sum_max'),
                ('sum of hinges', 'sum'),
            )
        },
    ),
}


def points(runs: Mapping, line: Mapping[float, str] | str) -> dict[float, list[float]]:
    """Returns {x: rsum of each seed} of a line of a figure."""

    def seeds(name: str) -> list[dict]:
        return [row for (experiment, _), row in runs.items() if experiment == name]

    if isinstance(line, str):
        by_epoch = [dict(row['rsum_by_epoch']) for row in seeds(line)]
        return {epoch: [rsums[epoch] for rsums in by_epoch] for epoch in sorted(by_epoch[0])}
    return {x: [row['metrics']['rsum'] for row in seeds(line[x])] for x in sorted(line)}


def draw(label: str, lines: Mapping[str, Mapping[float, Sequence[float]]]) -> bytes:
    """Returns an SVG of lines {label: {x: rsum of each seed}}: means, with whiskers from minimum to maximum."""
    with drawing_in_ink():
        figure = new_figure(6.4, 3.2)
        panel = figure.subplots()
        for (name, values), color in zip(lines.items(), COLORS, strict=False):
            means = [sum(rsums) / len(rsums) for rsums in values.values()]
            ends = [[mean - min(rsums), max(rsums) - mean] for mean, rsums in zip(means, values.values(), strict=True)]
            panel.errorbar([*values], means, [*zip(*ends, strict=True)], color=color, marker='.', capsize=3, label=name)
        ticks = sorted({x for values in lines.values() for x in values})
        if ticks[0] and ticks[-1] > 4 * ticks[0]:
            panel.set_xscale('log')
            panel.minorticks_off()
        panel.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
        panel.set(xlabel=label, ylabel='rsum')
        panel.spines[['top', 'right']].set_visible(False)
        panel.grid(alpha=0.2)
        figure.legend(loc='outside right upper', frameon=False)
        return svg(figure).replace('<defs>', f'{SCHEMES}<defs>', 1).encode()


def drawn() -> Iterator[tuple[Path, bytes]]:
    """Yields the path of each figure and its bytes."""
    runs = catalog.read_runs(catalog.size(small=True))
    for name, (label, lines) in FIGURES.items():
        yield DOCS / 'results' / f'{name}.svg', draw(label, {key: points(runs, line) for key, line in lines.items()})
