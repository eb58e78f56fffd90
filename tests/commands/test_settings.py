import pytest

from jitm.commands import settings
from jitm.errors import UserError
from jitm.evaluation import published

KEYS = {
    'configs/vse.py:fc,selhn,f30k': (('VSE (FC) + SelHN', 'f30k', 'SelHN table 3'),),
    'configs/vse.py:fc,selhn,f8k': (),
    'configs/sgraf.py:sgr,f30k': (('SGR', 'f30k', 'README of SGRAF'),),
}


def test_published_keys_determine_their_rows():
    rows = published.load()
    for name, keys in settings.all_settings().items():
        for key in keys:
            found = settings.find_rows(key, rows)
            assert found, (name, key)
            assert len({row.protocol for row in found}) == len(found), (name, key)


def test_selection_needs_every_word():
    names = lambda *words: [*settings.select(KEYS, words)]  # noqa: E731
    assert names() == [*KEYS]
    assert names('f30k') == ['configs/vse.py:fc,selhn,f30k', 'configs/sgraf.py:sgr,f30k']
    assert names('f30k', 'vse') == ['configs/vse.py:fc,selhn,f30k']


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['selhm'], "no setting has the word 'selhm', did you mean 'selhn'"),
        (['sgr', 'f8k'], 'no setting has all of the words sgr, f8k; leave one out'),
    ],
)
def test_selection_of_no_setting_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        settings.select(KEYS, words)


def test_table_has_published_numbers():
    lines = [line.split() for line in settings.table(KEYS, published.load()).splitlines()]
    assert lines[1] == [
        *('configs/vse.py:fc,selhn,f30k', 'VSE', '(FC)', '+', 'SelHN', 'Flickr30K', '1K'),
        *('77.1', '56.3', '496.1', 'single', 'SelHN', 'table', '3'),
    ]
    assert lines[2] == ['configs/vse.py:fc,selhn,f8k', *'-------']


def test_command_prints_the_table(capsys):
    settings.main(None, ['rvsepp', 'coco'])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ['setting', *['configs/vse.py:rvsepp,selhn,coco'] * 2]
