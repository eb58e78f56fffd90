"""The tests of this folder import PyTorch at their top: without it they are not collected."""

from tests.conftest import missing

collect_ignore_glob = ['test_*.py'] if missing('torch', 'transformers', 'sentence_transformers') else []
