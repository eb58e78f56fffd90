import pytest

from jitm import configs
from jitm.commands import cli, settings
from jitm.configs.meanings import MEANINGS
from jitm.configs.tuning import TUNING
from jitm.errors import UserError
from jitm.evaluation import published

KEYS = {
    'vse:fc,selhn,f30k': (('VSE (FC) + SelHN', 'f30k', 'SelHN table 3'),),
    'vse:fc,selhn,f8k': (),
    'sgraf:sgr,f30k': (('SGR', 'f30k', 'README of SGRAF'),),
}


def test_published_keys_determine_their_rows():
    rows = published.load()
    for name, keys in published.presets().items():
        for key in keys:
            numbers = published.find(key, rows)
            assert numbers, (name, key)
            assert len({row.protocol for row in numbers}) == len(numbers), (name, key)


def test_selection_needs_every_word():
    names = lambda *words: [*settings.select(KEYS, words)]  # noqa: E731
    assert names() == [*KEYS]
    assert names('f30k') == ['vse:fc,selhn,f30k', 'sgraf:sgr,f30k']
    assert names('f30k', 'vse') == ['vse:fc,selhn,f30k']


def test_words_of_the_system_column_select_too():
    names = [*settings.select(settings.presets(), ['VSE++', 'f30k'])]
    assert 'vsepp:vsepp,f30k' in names
    assert all('vsepp' in name for name in names)
    assert [*settings.select(KEYS, ['SGR'])] == ['sgraf:sgr,f30k']
    published_only = {'aoq:vsrn,coco': (('VSRN + AOQ (Fine-tune)', 'coco', 'AOQ table 4'),)}
    assert [*settings.select(published_only, ['fine-tune'])] == ['aoq:vsrn,coco']


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['selhm'], "no preset has the option 'selhm', did you mean 'selhn'"),
        (['photos'], "no preset has the option 'photos'; jitm settings lists the options$"),
        (['sgr', 'f8k'], 'no preset has all of the options sgr, f8k; leave one out'),
    ],
)
def test_selection_of_no_setting_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        settings.select(settings.presets() if words == ['photos'] else KEYS, words)


def test_table_has_published_numbers():
    lines = [line.split() for line in settings.table(KEYS, published.load()).splitlines()]
    assert lines[1] == [
        *('vse:fc,selhn,f30k', 'VSE', '(FC)', '+', 'SelHN', 'Flickr30K', '1K'),
        *('77.1', '56.3', '496.1', 'single', 'SelHN', 'table', '3'),
    ]
    assert lines[-1] == ['vse:fc,selhn,f8k', 'reduced:', 'small,', 'for', 'a', 'CPU', *'------']
    assert settings.table({'vse:fc,selhn,f8k': ()}, []).splitlines() == [
        'preset            system',
        'vse:fc,selhn,f8k  reduced: small, for a CPU',
    ]


def run(capsys, *words):
    assert cli.main(['settings', *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_command_prints_the_table(capsys):
    lines = run(capsys, 'rvsepp', 'selhn', 'coco')
    assert [line.split()[0] for line in lines] == ['preset', *['vse:rvsepp,selhn,coco'] * 2]


def test_without_words_the_command_prints_an_overview(capsys):
    lines = run(capsys)
    assert len(lines) < 40
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line.split()[1:] for line in lines if line[:1].strip()}
    assert rows['naaf'] == ['f30k', 'coco', 'f8k']
    assert rows.keys() >= set(configs.SYSTEMS)


def test_a_setting_is_shown_as_changes_of_the_defaults(capsys):
    lines = run(capsys, '--show', 'vse:rvse,selhn,f30k')
    assert lines[0] == 'config key: default -> vse:rvse,selhn,f30k'
    assert 'model.image.mlp: none -> residual' in lines
    assert 'terms.ranking.epsilon: absent -> 0.01' in lines
    assert not any(line.startswith('seed') for line in lines)
    assert len(run(capsys, '--show', 'default')) == 1


def test_a_first_stage_is_shown_as_changes_of_the_defaults(capsys):
    lines = run(capsys, '--show', 'aoq:vsepp,adapoffquin,f8k')
    assert 'stages.top_h_texts: absent -> 300' in lines
    assert 'stages.first.epochs: 30 -> 8' in lines
    assert not any('seed' in line for line in lines)


def test_a_preset_is_shown_with_all_of_its_keys(capsys):
    assert cli.main(['settings', '--show', 'vsepp:vsepp,f8k', '--full']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {'batch_size: 128', 'terms.ranking.margin: 0.2', 'epochs: 8'} <= {*lines}
    assert lines == sorted(lines)
    assert cli.main(['settings', '--full']) == 2


def test_every_option_has_a_meaning():
    options = {option for system in configs.SYSTEMS for table in configs.tables(system) for option in table}
    assert {*MEANINGS} == options | TUNING.keys()


def test_a_system_lists_the_meanings_of_its_options():
    blocks = settings.answer(['SCAN']).split('\n\n')
    assert blocks[0].startswith('SCAN (Lee et al. 2018)')
    assert blocks[2].split('\n') == [f'  {"t2i":<20}{MEANINGS["t2i"]}', f'  {"i2t":<20}{MEANINGS["i2t"]}']
    assert blocks[-3].startswith('  tokens ')
    assert 'scan:t2i,avg,f30k ' in blocks[-1]
