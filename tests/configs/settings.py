"""The settings of configs/, for tests."""

import importlib

from jitm import configs
from jitm.evaluation import published

FILES = (
    *('demo', 'vsepp', 'vse', 'vse_infinity', 'vsrn', 'scan', 'bfan', 'sgraf', 'naaf'),
    *('aoq', 'dbl', 'uniter', 'tags', 'oscar', 'clip', 'recipe'),
)


def module_of(file):
    return importlib.import_module(f'jitm.configs.{file}')


def load(setting):
    """The config of `vse:fc,max,f30k`, `demo` or `default`, as a dict."""
    return configs.load(setting).to_dict()


SETTINGS = [*published.presets()]
