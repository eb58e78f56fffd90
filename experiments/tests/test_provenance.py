import pytest

from experiments import provenance
from jitm.errors import UserError

VERSIONS = ('jitm', '3.11'), ('jitm', '3.13')  # of Python, in README


def row(r1, rsum):
    metrics = dict.fromkeys(provenance.METRICS, 50.04) | {'i2t/recall@1': r1, 'rsum': rsum, 'mean_distance': 0.3142}
    return {'metrics': metrics, 'rsum_by_epoch': [[0, 4.12], [1, rsum]], 'config': {'terms': {'temperature': 0.05}}}


@pytest.fixture
def source():
    runs = {
        ('flickr8k', name, seed): row(r1 + seed, rsum + 2 * seed)
        for name, r1, rsum in (('mean_sum', 25.0, 270.0), ('mean_max', 28.1, 280.3), ('fc_max', 11.1, 222.2))
        for seed in (0, 1)
    }
    found = {'pair': 'mean_max - mean_sum', 'difference': 10.3, 'low': -1.7, 'high': 21.9}
    return provenance.Source(runs, [found])


@pytest.mark.parametrize(
    'number',
    [
        *('25.0', '26.0', '25.5', '25.5 ± 0.7', '25.0 / 50.0'),  # a recall: of a seed, the mean, both directions
        *('270.0', '271.0 ± 1.4', '4.1', '0.31', '0.05'),  # rsum, that of an epoch, mean distance, a setting
        *('10.3', '10.3 ± 0.0', '3.1', '1.7', '21.9'),  # differences, an interval
        *('43.6 / 33.7', '498.6'),  # published
    ],
)
def test_numbers_of_rows_are_found(source, number):
    page = f'# Page\n\n<!-- rows mean_sum mean_max - mean_sum -->\n\nIt is {number}.\n'
    assert list(provenance.missing(page, source)) == []


@pytest.mark.parametrize(
    'number',
    [
        *('25.1', '25.5 ± 0.8', '43.6 / 33.8', '43.6', '222.2', '11.1'),
        *('7.3', '58.1'),
    ],
)
def test_other_numbers_are_missing(source, number):
    page = f'# Page\n\n<!-- rows mean_sum mean_max -->\n\nIt is {number} more.\n'
    assert list(provenance.missing(page, source)) == [('Page', number)]


def test_numbers_of_a_section_are_of_its_experiments(source):
    page = '# One\n\n222.2\n\n## Two\n\n<!-- rows mean_sum\n mean_max -->\n\n222.2\n\n## Three\n\n222.2\n'
    assert list(provenance.missing(page, source)) == [('Two', '222.2')]


def test_numbers_may_have_a_stated_source(source):
    page = '# One\n\n77.1 and 77.2\n\n<!-- numbers Diao et al. 2024, table II: 77.1\n 8.5 / 8.6 -->\n\n## Two\n\n77.1\n'
    assert list(provenance.missing(page, source)) == [('One', '77.2'), ('Two', '77.1')]


def test_experiments_without_a_row_are_refused(source):
    with pytest.raises(UserError, match='mean_sun: neither a group nor an experiment with rows'):
        list(provenance.missing('<!-- rows mean_sun losses -->', source))


def test_numbers_in_code_and_addresses_are_left_out():
    code = '`0.1` and [0.2](a0.3.md)\n\n```bash\n--x=0.4\n```\n<!-- 0.5 -->'
    text = f'{code} section 0.6, v1.2.3, 0.6x, 1,234 and (-0.7 to 0.8).'
    assert list(provenance.numbers(text)) == ['0.2', '0.7', '0.8']


@pytest.mark.slow
def test_numbers_of_the_pages_have_rows():
    source = provenance.read_source()
    for page in provenance.PAGES:
        missing = [found for found in provenance.missing(page.read_text(), source) if found not in VERSIONS]
        assert not missing, f'{page.name}: {missing} have no row'
