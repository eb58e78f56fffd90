"""Executes the notebook of the tutorial and makes its page.

    python -m tools.tutorial           executes all cells in the working directory, then makes the page
    python -m tools.tutorial page      makes the page of the outputs that the notebook has

The working directory has data/f8k_photos and docs/cc_photos, and nothing that the commands write. Lines of progress are
left out of the outputs, and the seconds of each cell are printed. Needs the extras `docs`, `photos` and `report`.
"""

import base64
import io
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from matplotlib import pyplot
from nbconvert import MarkdownExporter
from nbformat.v4 import new_output

NOTEBOOK = Path(__file__).parent.parent / 'docs' / 'tutorial.ipynb'
PICTURES = NOTEBOOK.with_name('tutorial_files')
PROGRESS = re.compile(r'^(an epoch has|compil|step \d+ of ).*\n', re.MULTILINE)


def run_command(line: str) -> str:
    """Runs a command of the shell and returns what it printed, without lines of progress."""
    result = subprocess.run(line, shell=True, check=True, stdout=subprocess.PIPE, text=True)
    return PROGRESS.sub('', result.stdout)


def run_python(source: str, names: dict[str, object]) -> bytes:
    """Runs Python and returns the figure that it shows as PNG."""
    picture = io.BytesIO()
    pyplot.show = lambda: pyplot.savefig(picture, format='png', dpi=80)
    exec(compile(source, NOTEBOOK.name, 'exec'), names)
    return picture.getvalue()


def execute() -> None:
    """Executes all cells and keeps their outputs."""
    notebook, names = nbformat.read(NOTEBOOK, as_version=4), {}
    for number, cell in enumerate([cell for cell in notebook.cells if cell.cell_type == 'code'], 1):
        start = time.perf_counter()
        if cell.source.startswith('!'):
            text = ''.join(run_command(line.removeprefix('!')) for line in cell.source.splitlines())
            cell.outputs = [new_output('stream', name='stdout', text=text)]
        else:
            png = base64.b64encode(run_python(cell.source, names)).decode()
            cell.outputs = [new_output('display_data', {'image/png': png})]
        cell.execution_count = number
        print(f'{time.perf_counter() - start:6.0f} s  {cell.source.splitlines()[0]}', flush=True)
    nbformat.write(notebook, NOTEBOOK)


def page() -> tuple[str, dict[str, bytes]]:
    """Returns the page of the notebook as it is, and the pictures by the names of their files."""
    markdown, resources = MarkdownExporter().from_filename(str(NOTEBOOK))
    lines = re.sub(r'^```python\n(?=!)', '```bash\n', markdown, flags=re.MULTILINE).replace('\n!jitm ', '\njitm ')
    return lines.replace('![png](', f'![png]({PICTURES.name}/'), resources['outputs']


def main() -> None:
    """Runs the command."""
    if sys.argv[1:] != ['page']:
        execute()
    text, pictures = page()
    NOTEBOOK.with_suffix('.md').write_text(text)
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir()
    for name, content in pictures.items():
        (PICTURES / name).write_bytes(content)


if __name__ == '__main__':
    main()
