"""The fixtures of tests/conftest.py for the tests beside benchmarks, examples, experiments and tools."""

from tests.conftest import *  # noqa: F403
