"""The settings of configs/, for tests."""

import importlib

from jitm import configs

FILES = (
    *('demo', 'vsepp', 'vse', 'vse_infinity', 'vsrn', 'scan', 'bfan', 'sgraf', 'naaf'),
    *('aoq', 'dbl', 'uniter', 'tags', 'oscar', 'clip', 'recipe'),
)


def module_of(file):
    return importlib.import_module(f'jitm.configs.{file}')


def load(setting):
    """The config of `vse:fc,max,f30k`, `demo` or `default`, as a dict."""
    return configs.load(setting).to_dict()


SETTINGS = [f'{file}:{words}'.rstrip(':') for file in FILES for words in module_of(file).SETTINGS]
