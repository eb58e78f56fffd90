"""Executes the notebook of the tutorial and makes its page.

    python -m tools.tutorial           executes all cells in the working directory, then makes the page
    python -m tools.tutorial page      makes the page of the outputs that the notebook has

The working directory has data/f8k_photos, docs/cc_photos and no runs. Lines of progress are left out of the outputs,
and the seconds of each cell are printed. Needs nbconvert (extra `docs`), nbclient and ipykernel.
"""

import re
import shutil
import sys
import time
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

NOTEBOOK = Path(__file__).parent.parent / 'docs' / 'tutorial.ipynb'
PICTURES = NOTEBOOK.with_name('tutorial_files')
PROGRESS = r'^(.*\r(?!\n)|compil|step \d+ of |.* encoded, ).*\n'


def page() -> tuple[str, dict[str, bytes]]:
    """Returns the page of the notebook as it is, and the pictures by the names of their files."""
    markdown, resources = MarkdownExporter().from_filename(str(NOTEBOOK))
    lines = re.sub(r'^```python\n(?=!)', '```bash\n', markdown, flags=re.MULTILINE).replace('\n!jitm ', '\njitm ')
    return lines.replace('![png](', f'![png]({PICTURES.name}/'), resources['outputs']


def execute() -> None:
    """Executes all cells and keeps their outputs."""
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=None, kernel_name='python3', resources={'metadata': {'path': '.'}})
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == 'code':
                start = time.perf_counter()
                client.execute_cell(cell, index, execution_count=None)
                print(f'{time.perf_counter() - start:6.0f} s  {cell.source.splitlines()[0][:100]}', flush=True)
                cell.metadata.clear()
                streams = [output for output in cell.outputs if output.output_type == 'stream']
                for output in streams:
                    output.text = re.sub(PROGRESS, '', output.text.replace('\r\n', '\n'), flags=re.MULTILINE)
    nbformat.write(notebook, NOTEBOOK)


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
