"""The settings of configs/, for tests."""

import functools
import importlib
import json
from pathlib import Path

from jitm import configs
from jitm.commands import settings
from jitm.importers.named_folders import complete
from jitm.models.make import make_model
from jitm.training import stages
from jitm.training.plan import make_plan


def module_of(file):
    return importlib.import_module(f'jitm.configs.{file}')


def load(setting):
    """The config of `vse:fc,max,f30k`, `demo` or `default`, as a dict."""
    return configs.load(setting).to_dict()


@functools.cache
def one_of_each_word():
    """A listed setting with each word of each file."""
    names = {}
    for setting in settings.presets():
        file, _, words = setting.partition(':')
        new = [(file, word) for word in words.split(',') if (file, word) not in names]
        if new and settings.is_accepted(setting):
            names |= dict.fromkeys(new, setting)
    return tuple(dict.fromkeys(names.values()))


def start(config):
    """Does what `jitm train` does before it reads data, and what it does with models afterwards, in each stage."""
    config = complete(config)
    parts = stages.split_stages(config, Path('run')) if config['stages'] else stages.Stages(config, config, {}, False)
    for stage in {id(one): one for one in (parts.first, parts.second)}.values():
        plan = make_plan(stage)
        models = {name: _model(json.dumps(section)) for name, section in plan.models.items()}
        kind = 'word pieces' if stage['vocabulary']['path'].endswith('.txt') else 'words'
        assert all(model.text_format.kind in (kind, None) for model in models.values())
        plan.make_optimizer(10)


@functools.cache
def _model(section):
    return make_model(json.loads(section), vocab_size=10)
