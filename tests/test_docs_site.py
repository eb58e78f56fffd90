from tests.conftest import ROOT
from tools import docs_site

PAGE = '[a](data.md#x) [b](../jitm/api.py) [c](https://x.y/z) [d](#e)\n\n```\n[f](../g.py)\n```\n'


def test_links_that_leave_the_docs_lead_to_pages_of_their_files():
    moved = PAGE.replace('../jitm/api.py', 'source/jitm/api.py.md')
    assert docs_site.moved(PAGE, 'docs') == moved
    assert [*docs_site.linked(PAGE, 'docs')] == ['jitm/api.py']
    assert docs_site.moved('[a](docs/data.md#x), [b](LICENSE)', '.') == '[a](data.md#x), [b](source/LICENSE.md)'


def test_files_and_folders_are_shown():
    assert docs_site.show('train.py').startswith('# train.py\n\n````python\n')
    assert '- `scan.py`\n' in docs_site.show('configs')
    assert docs_site.show('CHANGELOG.md') == (ROOT / 'CHANGELOG.md').read_text()
