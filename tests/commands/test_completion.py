"""Completion of commands, flags and values, by bash itself."""

import subprocess

import pytest

from jitm.commands import cli

CALL = """
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
_shtab_jitm
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ('words', 'completed'),
    [
        ('jitm se', 'search settings'),
        ('jitm eval --prec', '--precision'),
        ("jitm eval --precision ''", 'default high highest'),
    ],
)
def test_bash_completes(words, completed, capsys):
    assert cli.main(['completion', 'bash']) == 0
    script = capsys.readouterr().out + CALL.format(words=words)
    run = subprocess.run(['bash'], input=script, capture_output=True, text=True)
    assert run.stdout.strip() == completed, run.stderr


def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(['completion', 'bsh']) == 2
    assert "did you mean 'bash'" in capsys.readouterr().err
