"""The settings of configs/, for tests."""

import importlib
from pathlib import Path

from jitm import configs
from jitm.evaluation import published
from jitm.models.make import make_model, member_model
from jitm.training import stages
from jitm.training.members import make_members
from jitm.training.setup import make_optimizer
from jitm.training.sources import make_objective

FILES = (
    *('demo', 'vsepp', 'vse', 'vse_infinity', 'vsrn', 'scan', 'bfan', 'sgraf', 'naaf', 'imram', 'gsmn'),
    *('aoq', 'dbl', 'uniter', 'tags', 'oscar', 'clip', 'siglip', 'heads', 'noisy', 'recipe'),
)


def module_of(file):
    return importlib.import_module(f'jitm.configs.{file}')


def load(setting):
    """The config of `vse:fc,max,f30k`, `demo` or `default`, as a dict."""
    return configs.load(setting).to_dict()


SETTINGS = [*published.presets()]


def build(config):
    """Builds the parts of each stage of a config without its data."""
    if config['stages']:
        _build_stage(stages.split_stages(config, Path()).first)
        if config['stages']['top_h_texts']:
            config['offline']['path'] = 'the folder that the first stage mines'
    _build_stage(config)


def _build_stage(config):
    """Builds the models, members, optimizer, candidates and terms of a stage."""
    make_objective(config)
    sections = {name: member_model(config, name) for name in config['members']}
    models = {name: make_model(section, vocab_size=10) for name, section in sections.items()}
    for model in models.values():
        kind = 'word pieces' if config['vocabulary']['path'].endswith('.txt') else 'words'
        assert model.text_format.kind in (kind, None)
    optimizer, _ = make_optimizer(config['optimizer'], 10, config['epochs'])
    make_members(config['members'], models, optimizer)
