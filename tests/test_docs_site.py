from jitm import losses
from tests.conftest import ROOT
from tools import docs_options, docs_site

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
    assert docs_site.show('CHANGELOG.md') == (ROOT / 'CHANGELOG.md').read_text()


def test_options_have_the_values_and_defaults_of_hints():
    page = docs_options.page()
    assert '| `margin` | a number at least 0 | `0.2` |' in page.partition('#### anchored.relative_max')[2]
    assert "| `dtype` | `'float32'`, `'bfloat16'` |  |" in page.partition('### evaluation')[2]
    assert '| `num_negatives` | an integer at least 1 or None | `None` |' in page.partition('#### in_batch')[2]


def test_options_list_all_that_a_config_can_name():
    named = {key: {name for name, _ in found} for key, found in docs_options.named().items()}
    assert {'precomp.load', 'photos.load', 'scenes.load', 'tfds.load'} == named['data.source']
    assert {'in_batch', 'in_chunks', 'perturbed', 'queue', 'shortlist', 'sampled'} == named['candidates.source']
    assert {name.rpartition('.')[2] for name in named['terms.*.loss']} == {*losses.__all__}
    assert 'vse.VSE' in named['model.name']
    assert 'cnn.ResNet' in named['model.*.name']
