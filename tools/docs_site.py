"""Hooks of MkDocs (mkdocs.yml): pages that are made from README, the sources and the commands.

    make docs

A link that leaves docs/ leads to a page with that file of the repository, so that the pages of docs/ stay as they are
read as files. The home page is README.
"""

import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import docs_api, docs_options, docs_published

ROOT = Path(__file__).parent.parent
LINK = re.compile(r'(?<=\]\()(?!\w+:|#)([^)#\s]+)')  # the target of a link, without its heading
BADGE = re.compile(r'^(?:\[!\[.*\n)+\n', re.MULTILINE)
FENCE = re.compile(r'(^```.*?^```)', re.DOTALL | re.MULTILINE)
CODE = re.compile(r'<code.*?</code>', re.DOTALL)
CELL = re.compile(r'<t[dh]\b.*?</t[dh]>', re.DOTALL)
OPTION = re.compile(r'(?<![\w-])--[a-z][\w.]*')
VERDICT = re.compile(r'<td>(confirmed|contradicted|no difference|open)</td>')
MARKUP = re.compile(r'(<[^>]+>|&\w+;)')
# Pages of definitions come before pages of numbers in the results of the search.
BOOST = {
    **{'losses.md': 3, 'noise.md': 2, 'recipes.md': 2, 'training.md': 2},
    **{'published.md': 0.2, 'references.md': 0.2, 'reference/options.md': 0.5},
}


def source_page(path: str) -> str:
    """Returns the name of the page of a file or folder of the repository."""
    return f'source/{path}.md'


def moved(text: str, folder: str, page: str) -> str:
    """Returns the text of a file in a folder of the repository with the links that it has as a page of the site."""

    def target(match: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[0]))
        destination = path.removeprefix('docs/') if path.startswith('docs/') else source_page(path)
        return posixpath.relpath(destination, posixpath.dirname(page) or '.')

    parts = FENCE.split(text)
    return ''.join(part if part.startswith('```') else LINK.sub(target, part) for part in parts)


def linked(text: str, folder: str) -> Iterator[str]:
    """Yields the files and folders of the repository outside docs/ that a page links to."""
    for match in LINK.finditer(FENCE.sub('', text)):
        path = posixpath.normpath(posixpath.join(folder, match[0]))
        if not path.startswith('docs/'):
            yield path


def show(path: str) -> str:
    """Returns the page of a file, the cells of a notebook, or the list of the files of a folder."""
    file = ROOT / path
    if file.suffix == '.md':
        return file.read_text(encoding='utf-8')
    if file.suffix == '.ipynb':
        cells = [(cell['cell_type'], ''.join(cell['source'])) for cell in json.loads(file.read_text())['cells']]
        texts = [source if kind == 'markdown' else f'```python\n{source}\n```' for kind, source in cells]
        return '\n\n'.join(texts) + '\n'
    if file.is_dir():
        names = sorted(f'{module.relative_to(file)}' for module in file.rglob('*.py'))
        return f'# {path}\n\n' + ''.join(f'- `{name}`\n' for name in names)
    language = {'.py': 'python', '.json': 'json'}.get(file.suffix, 'text')
    return f'# {path}\n\n````{language}\n{file.read_text(encoding="utf-8")}\n````\n'


def commands() -> str:
    """Returns the help of every command."""
    from jitm.commands.cli import COMMANDS

    def help_of(*words: str) -> str:
        run = subprocess.run(
            [sys.executable, '-m', 'jitm', *words, '--help'], capture_output=True, text=True, check=True
        )
        return f'```text\n{run.stdout}```\n'

    return f'# Commands\n\n{help_of()}\n' + '\n'.join(f'## jitm {name}\n\n{help_of(name)}' for name in COMMANDS)


def generated() -> dict[str, str]:
    """Returns the text of each page that is not in docs/, by its name."""
    readme = (ROOT / 'README.md').read_text(encoding='utf-8').replace('src="docs/', 'src="')
    readme = BADGE.sub('', readme)  # its address is relative to the repository's page
    outside = {*linked(readme, '.')}
    for page in (ROOT / 'docs').rglob('*.md'):
        outside |= {*linked(page.read_text(encoding='utf-8'), f'{page.parent.relative_to(ROOT)}')}
    for path in [path for path in outside if path.endswith('.md')]:
        outside |= {*linked(show(path), posixpath.dirname(path))}
    return {
        'index.md': moved(readme, '.', 'index.md'),
        'reference/commands.md': commands(),
        'reference/options.md': docs_options.page(),
        'reference/api.md': docs_api.page(),
        **{source_page(path): show(path) for path in sorted(outside)},
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for name, text in generated().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adds published numbers, and lets links that leave docs/ lead to pages of their files, not for the search."""
    name = page.file.src_uri
    page.meta['search'] = {'exclude': name.startswith(('source/', 'notes/')), 'boost': BOOST.get(name, 1)}
    if name == 'published.md':
        markdown = docs_published.filled(markdown)
    path = re.sub(r'^source/(.*\.(?:md|ipynb))\.md$', r'\1', name) if page.file.generated_by else f'docs/{name}'
    return markdown if path == name else moved(markdown, posixpath.dirname(path), name)


def breakable(code: str) -> str:
    """Returns code of a table with the places where its lines may break."""
    return ''.join(
        part if MARKUP.fullmatch(part) else re.sub(r'(?<=[\w)])([._,:/=]+)(?=[\w(])', r'\1<wbr>', part)
        for part in MARKUP.split(code)
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps options such as `--config` on one line, lets code in tables break, and gives verdicts their colour."""
    del page, config, files
    html = VERDICT.sub(lambda cell: f'<td class="verdict {cell[1].replace(" ", "-")}">{cell[1]}</td>', html)
    html = CELL.sub(
        lambda cell: CODE.sub(lambda code: breakable(code[0]), cell[0]).replace(' ± ', '\u00a0±\u00a0'), html
    )
    return CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
