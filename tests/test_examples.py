"""The examples run, and do what their docstrings say."""

import runpy

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_minimal_example_learns(capsys):
    main = runpy.run_path(str(ROOT / 'examples' / 'minimal.py'))['main']
    rsums = main(epochs=2)
    assert rsums[0] > 20  # 6 by chance
    assert 'rsum' in capsys.readouterr().out
    assert rsums[1] > rsums[0] + 20
