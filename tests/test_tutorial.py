"""The notebook of the tutorial runs, with few pictures and tiny models; its page is what nbconvert makes of it."""

import json
import re
import shlex

import pytest

from jitm.commands import cli
from jitm.data import scenes
from jitm.data.images import photos
from tests.conftest import ROOT
from tests.test_readme import shorten

NOTEBOOK = ROOT / 'docs' / 'tutorial.ipynb'


def sources() -> list[str]:
    """Returns the code cells."""
    cells = json.loads(NOTEBOOK.read_text())['cells']
    return [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']


def page_of(markdown: str) -> str:
    """Returns the page of what nbconvert makes: commands are those of a shell, pictures are in a folder."""
    lines = re.sub(r'^```python\n(?=!)', '```bash\n', markdown, flags=re.MULTILINE).replace('\n!jitm ', '\njitm ')
    return lines.replace('![png](', '![png](tutorial_files/')


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:words')  # that the captions of drawn shapes lack
def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for split, images in (('train', 16), ('dev', 10)):
        photos.write(scenes.load(split, **{f'{split}_images': images}), 'data/f8k_photos')
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'docs' / 'cc_photos').symlink_to(ROOT / 'docs' / 'cc_photos')
    monkeypatch.setattr('matplotlib.pyplot.show', lambda: None)
    names = {}
    for source in sources():
        for line in source.splitlines() if source.startswith('!') else ():
            arguments = shlex.split(line.removeprefix('!jitm'))
            if arguments[0] == 'encode':
                arguments.append('--config.initialize.image=')  # random parameters
            short = shorten(arguments) if arguments[0] == 'train' else arguments
            assert cli.main(short) == 0, f'{line}\n{capsys.readouterr().err}'
        if not source.startswith('!'):
            exec(compile(source, NOTEBOOK.name, 'exec'), names)


def test_the_page_is_made_from_the_notebook():
    nbconvert = pytest.importorskip('nbconvert')
    page, resources = nbconvert.MarkdownExporter().from_filename(str(NOTEBOOK))
    assert page_of(page) == NOTEBOOK.with_suffix('.md').read_text()
    for name, content in resources['outputs'].items():
        assert (NOTEBOOK.parent / 'tutorial_files' / name).read_bytes() == content
