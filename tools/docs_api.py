"""The page of the Python API: what a user calls first, losses with their formulas, metrics, models and types."""

import re
from collections.abc import Iterator
from pathlib import Path

from jitm import losses
from tools import docs_options

LOSSES = Path(__file__).parent.parent / 'docs' / 'losses.md'
# Paper's name, function, formula, published reduction and preset of a row of docs/losses.md.
ROW = re.compile(
    r'^\| ([^|]+) \| \[`\w+\.(\w+)`\]\([^)]+\), [^|]+ \| ([^|]+) \| ([^|]+) \| (`[^`]+`) \|$', re.MULTILINE
)
RUN = 'load_data, encode_image, encode_text, similarity, similarity_pairwise, search, index, encode, vectors'
INTRODUCTION = """# Python API

```python
import jitm

run = jitm.load('runs/demo')
data = run.load_data('test')
images, captions = run.encode_image(data.images), run.encode_text(data.captions)
scores = run.similarity(images, captions)  # float32 [images, captions]
for hit in run.search('a red ring above a blue square', images, top_k=3):
    print(data.image_ids[hit.index], hit.score)
print(jitm.evaluate(run, 'test')['rsum'])
```

`jitm.losses` takes plain arrays and needs no run. Errors that a user can cause are a `jitm.errors.UserError`.

## Load, evaluate, score

"""
OF_LOSSES = """## Losses

```python
loss = jitm.losses.max_of_hinges(scores, positives, margin=0.2)
```

| argument | |
|---|---|
| `scores` | float [Q, C]: queries are rows, candidates columns |
| `positives` | bool [Q, C]: the candidates that match their query |
| `negatives` | bool [Q, C]: the candidates that count as negatives; by default all that are not positive |

All return one value per query, float [Q], not reduced; losses of words take `logits` and return one value per caption.
Other arguments are keywords, which are keys of a term in a config. [Losses](../losses.md#all-losses) has the symbols.

"""


def directive(name: str, level: int, *options: str) -> str:
    """Returns the lines by which mkdocstrings shows an object."""
    lines = [f'heading_level: {level}', 'show_root_full_path: false', *options]
    return f'::: {name}\n    options:\n' + ''.join(f'      {line}\n' for line in lines) + '\n'


def shown_losses() -> Iterator[str]:
    """Yields the formulas, the arguments and the docstring of each loss, in the order of docs/losses.md."""
    rows: dict[str, list[str]] = {}
    for paper, function, formula, reduction, preset in ROW.findall(LOSSES.read_text(encoding='utf-8')):
        formula = re.sub(r'\]\((?=\w+\.md)', '](../', formula)
        rows.setdefault(function, []).append(f'| {paper} | {formula} | {reduction} | {preset} |')
    for function, lines in rows.items():
        names = ', '.join(line.split(' | ')[0].strip('| ') for line in lines)
        yield directive(f'jitm.losses.{function}', 3, f"heading: '{function}: {names}'")
        yield '\n'.join(['| name | loss of a query | reduction | preset |', '|---|---|---|---|', *lines, '', ''])
        yield docs_options.table(getattr(losses, function)).replace('| key |', '| argument |', 1)


def page() -> str:
    """Returns the page in Markdown."""
    parts = [INTRODUCTION, *(directive(f'jitm.api.{name}', 3) for name in ('load', 'evaluate', 'score'))]
    parts.append('## A loaded run\n\n')
    parts.append(directive('jitm.api.LoadedRun', 3, f'members: [{RUN}]'))
    parts.append(directive('jitm.api.Index', 3, 'members: [top]'))
    parts += [OF_LOSSES, *shown_losses()]
    for title, module in (('Metrics', 'metrics'), ('Models', 'models.matcher'), ('Types', 'types')):
        parts.append(directive(f'jitm.{module}', 2, f'heading: {title}'))
    return ''.join(parts)
