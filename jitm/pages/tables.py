"""Markdown tables and number formats."""

import statistics
from collections.abc import Sequence


def mean_and_deviation(values: Sequence[float], precision: str = '.1f') -> str:
    """Returns `mean ± sample standard deviation`; the value alone if there is one, '-' if there is none."""
    if not values:
        return '-'
    mean = format(statistics.mean(values), precision)
    return mean if len(values) == 1 else f'{mean} ± {format(statistics.stdev(values), precision.lstrip("+"))}'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
