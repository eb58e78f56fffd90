import re

import markdown
import pytest

from jitm import losses
from jitm.config.build import flatten
from jitm.configs import default
from jitm.evaluation import published
from tests.conftest import ROOT
from tools import docs_api, docs_math, docs_options, docs_published, docs_site

PAGE = '[a](data.md#x) [b](../jitm/api.py) [c](https://x.y/z) [d](#e)\n\n```\n[f](../g.py)\n```\n'


def test_links_that_leave_the_docs_lead_to_pages_of_their_files():
    moved = PAGE.replace('../jitm/api.py', 'source/jitm/api.py.md')
    assert docs_site.moved(PAGE, 'docs', 'data.md') == moved
    assert [*docs_site.linked(PAGE, 'docs')] == ['jitm/api.py']
    page = '[a](vsepp.md) [b](../data.md#x) [c](../../jitm/api.py)'
    assert (
        docs_site.moved(page, 'docs/results', 'results/aoq.md')
        == '[a](vsepp.md) [b](../data.md#x) [c](../source/jitm/api.py.md)'
    )
    assert (
        docs_site.moved('[a](docs/data.md#x), [b](LICENSE)', '.', 'index.md')
        == '[a](data.md#x), [b](source/LICENSE.md)'
    )


def test_links_of_files_outside_docs_lead_to_pages():
    page = docs_site.moved('[a](docs/data.md), [b](configs)', '', 'source/CHANGELOG.md.md')
    assert page == '[a](../data.md), [b](configs.md)'


def test_files_and_folders_are_shown():
    assert docs_site.show('train.py').startswith('# train.py\n\n````python\n')
    assert '- `scan.py`\n' in docs_site.show('configs')
    notebook = docs_site.show('examples/notebooks/paper_figures.ipynb')
    assert notebook.startswith('# Figures of the papers from saved files\n\n')
    assert '\n\n```python\nimport json\n' in notebook
    assert docs_site.show('CHANGELOG.md') == (ROOT / 'CHANGELOG.md').read_text()


def test_options_have_the_values_and_defaults_of_hints():
    page = docs_options.page()
    assert '| `margin` | a number at least 0 | `0.2` |' in page.partition('#### anchored.relative_max')[2]
    assert "| `dtype` | `'float32'`, `'bfloat16'` |  |" in page.partition('### evaluation')[2]
    assert '| `num_negatives` | an integer at least 1 or None | `None` |' in page.partition('#### in_batch')[2]


def test_options_have_every_default_with_its_comment():
    page = docs_options.page().partition('## Types and ranges')[0]
    for key, value in flatten(default.get_config().to_dict()).items():
        assert f'| `{key}` | `{value!r}` |' in page.replace('dict()', '{}'), key
    assert "| `data.root` | `'data/f30k_precomp'` | folder with {split}_ims.npy and {split}_caps.txt |" in page
    members = page.partition('### Section members')[2].partition('###')[0]
    assert 'Also model=, if it differs' in members
    assert members.rstrip().endswith('see jitm/layers/lora.py.')


def test_options_list_all_that_a_config_can_name():
    named = {key: {name for name, _ in found} for key, found in docs_options.named().items()}
    assert {'precomp.load', 'photos.load', 'scenes.load', 'tfds.load'} == named['data.source']
    assert {'in_batch', 'in_chunks', 'perturbed', 'queue', 'shortlist', 'sampled'} == named['candidates.source']
    assert {name.rpartition('.')[2] for name in named['terms.*.loss']} == {*losses.__all__}
    assert 'vse.VSE' in named['model.name']
    assert 'cnn.ResNet' in named['model.*.name']


def test_every_published_row_has_a_line_with_its_numbers():
    page = docs_published.filled((ROOT / 'docs' / 'published.md').read_text())
    lines = [line for line in page.splitlines() if line.startswith('| ')]
    rows = published.load()
    tables = [line for line in lines if line.startswith('| system |')]
    assert len(tables) == len({(row.dataset, row.protocol, docs_published.section(row)) for row in rows})
    assert len(lines) == len(rows) + len(tables)
    assert re.search(r'^\| SGR.* \| `sgraf:sgr,f30k` \| 76\.6 / 56\.1 \| 490\.9 \|', page, re.MULTILINE)
    assert '### COCO, 1K, 5 folds, 20 % of captions mixed\n' in page
    assert set(docs_published.MARK.findall(page)) == set(docs_published.SECTIONS)
    presets = set(re.findall(r'`([\w:,]+)`', '\n'.join(lines)))
    assert presets == {preset for preset, keys in published.presets().items() if keys}


def test_api_has_the_formula_and_the_arguments_of_every_loss():
    page = docs_api.page()
    assert all(f'::: jitm.losses.{name}\n' in page for name in losses.__all__)
    assert page.count('::: jitm.losses.') == len(losses.__all__)
    selhn = page.partition('::: jitm.losses.selective_hard_negative')[2].partition(':::')[0]
    assert '\\epsilon`$' in selhn
    assert '| `epsilon` | a number at least 0 |  |' in selhn
    assert '](../data.md#relevance' in page


def test_formulas_become_mathml():
    text = 'the loss $`[m + s_n]_+`$\n\n| a | b |\n|---|---|\n| $`\\lvert x \\rvert`$ | `$x$` |\n'
    html = markdown.markdown(text, extensions=['tables', 'tools.docs_math'])
    assert html.count('<math') == 2
    assert '<td><math' in html
    assert '<code>$x$</code>' in html
    assert 'display="block"' in docs_math.fence('x')
    with pytest.raises(ValueError, match=r'\\minimum is unknown in the formula'):
        docs_math.mathml(r'\minimum_n s_n')


def test_code_in_tables_breaks_and_options_do_not():
    html = '<td><code>a.b_c --d.e=f</code></td><code>a.b --d</code> a.b'
    assert docs_site.on_page_content(html, None, None, None) == (
        '<td><code>a.<wbr>b_<wbr>c <span class="option">--d.</span><wbr>e=<wbr>f</code></td>'
        '<code>a.b <span class="option">--d</span></code> a.b'
    )
