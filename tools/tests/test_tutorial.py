"""The notebook of the tutorial runs with the published networks on eight photos; nbconvert makes its page of it."""

import json
import re
import shlex

import pytest

from jitm.commands import cli
from jitm.files.packages import PACKAGES
from tests.conftest import ROOT
from tests.support.pages import expanded, fences, jitm_arguments, shorten

NOTEBOOK = ROOT / 'docs' / 'tutorial.ipynb'


def sources() -> list[str]:
    """Returns the code cells, and the commands on the photos of one's own."""
    cells = [(cell['cell_type'], ''.join(cell['source'])) for cell in json.loads(NOTEBOOK.read_text())['cells']]
    own = next(source for kind, source in cells if kind == 'markdown' and 'data/own_tokens' in source)
    blocks = re.findall(r'```bash\n(.*?)```', own.partition('## What to expect')[0], re.DOTALL)
    return [
        *(source for kind, source in cells if kind == 'code'),
        *(block.strip().replace('jitm ', '!jitm ') for block in blocks),
    ]


@pytest.mark.slow
@pytest.mark.needs(*(PACKAGES[name].module for name in ('efficientnet-lite0', 'all-MiniLM-L6-v2')))
def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = tmp_path / 'docs' / 'cc_photos' / 'test'
    few.mkdir(parents=True)
    photos = ROOT / 'docs' / 'cc_photos' / 'test'
    lines = (photos / 'metadata.jsonl').read_text().splitlines(keepends=True)[:8]
    (few / 'metadata.jsonl').write_text(''.join(lines))
    for line in lines:
        name = json.loads(line)['file_name']
        (few / name).symlink_to(photos / name)
    (tmp_path / 'data' / 'f8k_photos').mkdir(parents=True)
    for split in ('train', 'dev'):
        (tmp_path / 'data' / 'f8k_photos' / split).symlink_to(few)
    monkeypatch.setattr('matplotlib.pyplot.show', lambda: None)
    names = {}
    for source in sources():
        for line in source.splitlines() if source.startswith('!') else ():
            arguments = shlex.split(line.removeprefix('!jitm'))
            short = shorten(arguments) if arguments[0] == 'train' else arguments
            assert cli.main(short) == 0, f'{line}\n{capsys.readouterr().err}'
        if not source.startswith('!'):
            exec(compile(source, NOTEBOOK.name, 'exec'), names)
    for block in fences(ROOT / 'docs' / 'checkpoints.md', 'bash'):
        if 'runs/tutorial' in block:
            for command in expanded([block], tmp_path):
                assert cli.main(jitm_arguments(command)) == 0, f'{command}\n{capsys.readouterr().err}'
    assert 'rsum' in (tmp_path / 'exported' / 'tutorial' / 'README.md').read_text()


def test_the_page_is_made_from_the_notebook():
    from tools import tutorial

    page, pictures = tutorial.page()
    assert page == NOTEBOOK.with_suffix('.md').read_text()
    assert pictures == {path.name: path.read_bytes() for path in tutorial.PICTURES.iterdir()}
