import functools
import itertools
import json
import random
import re
import runpy
import shutil

import jax
import numpy as np
import pytest

from jitm import configs
from jitm.commands import settings
from jitm.configs import blip, clip, common, siglip
from jitm.configs.tuning import TUNING
from jitm.files.packages import PACKAGES
from jitm.importers.named_folders import complete
from jitm.models.make import make_model
from jitm.training.plan import make_plan
from jitm.types import Images, Texts
from tests.configs.settings import load, module_of, one_of_each_word, start
from tests.conftest import ROOT

NEEDS_MINILM = pytest.mark.needs(PACKAGES['all-MiniLM-L6-v2'].module)
SAMPLE = 40  # combinations of words, of which some files have thousands


@pytest.mark.parametrize('file', configs.SYSTEMS)
@pytest.mark.parametrize('count', [SAMPLE, pytest.param(None, marks=pytest.mark.slow)])
def test_a_preset_is_listed_if_and_only_if_it_starts(file, count):
    """`jitm settings` lists every combination of words that the file does not refuse by name."""
    keys = load('default').keys()
    combinations = [*itertools.product(*configs.tables(file))]
    names = {settings.options_of_preset(name): name for name in settings.presets() if name.partition(':')[0] == file}
    assert [*names] == [(file, *words) for words in combinations]
    for name in random.Random(0).sample([*names.values()], min(len(names), count or len(names))):
        try:
            config = load(name)
        except ValueError:  # is not listed
            continue
        assert config.keys() == keys
        assert config['scene_graphs']['source'] != 'scene_graphs.gold' or config['data']['source'] == 'scenes.load'
        start(config)


@pytest.mark.parametrize('file', configs.SYSTEMS)
def test_a_missing_word_stands_for_the_first_of_its_table(file):
    get_config = module_of(file).get_config
    first = [table[0] for table in configs.tables(file)]
    assert get_config() == get_config('') == get_config(','.join(first)) == get_config(','.join(reversed(first)))


def test_settings_initialize_from_runs_of_settings():
    listed = [*settings.presets()]
    runs = {common.run_of(setting).rstrip('_') for setting in listed}
    assert len(runs) == len(listed)
    runs |= {f'runs/clip_{size}' for size in clip.SIZE}  # made by `jitm convert`
    runs |= {f'runs/blip_{size}' for size in blip.SIZE}
    runs |= {f'runs/{version}_{size}' for version, size in itertools.product(siglip.VERSION, siglip.SIZE)}
    for setting in one_of_each_word():
        config = load(setting)
        named = [member.get('init_from', '') for member in config['members'].values()]
        named.append(config['offline']['path'].removesuffix('/candidates'))
        assert {run for run in named if run} <= runs, setting


@pytest.mark.parametrize(
    ('setting', 'message'),
    [
        ('siglip:b32_256', "'siglip' was not released as 'b32_256': use another size, or 'siglip2'"),
        ('siglip:siglip2,f8k', "the reduced variant 'f8k' is tiny: leave the option 'siglip2' out"),
        ('clip:b32,f8k', "the reduced variant 'f8k' is tiny: leave the option 'b32' out"),
        (
            'vse:fc,selhm,f30k',
            "the preset 'fc,selhm,f30k' has the unknown option 'selhm', did you mean 'selhn'",
        ),
        ('clip:layerwse', "the unknown option 'layerwse', did you mean 'layerwise'"),
        ('vsrn:zzz', "the unknown option 'zzz'; use at most one option of each table: f30k | coco | f8k"),
        ('vse:fc,', "the unknown option ''"),
        ('vse:fc,rvse', "the preset 'fc,rvse' has two options of fc | mlp | rvse | rvsepp | mean; use one"),
        ('vse:fc,fc', 'two options of fc'),
        ('demo:f30k', "the unknown option 'f30k'; the file has no options"),
        ('dbl:cmpm', "the loss 'cmpm' has no anchor: use the scenario 'alone', not 'oss'"),
        ('dbl:rm,alone', "the loss 'rm' needs an anchor: use another scenario than 'alone'"),
        ('uniter:large,f8k', "the reduced variant 'f8k' is tiny: leave the option 'large' out"),
        ('tags:large,scenes', "the reduced variant 'scenes' is tiny: leave the option 'large' out"),
    ],
)
def test_wrong_words_are_refused(setting, message):
    with pytest.raises(
        ValueError, match=re.escape(message) + '$' if message.endswith('scenes') else re.escape(message)
    ):
        load(setting)


def test_a_copy_of_a_file_has_no_reduced_variants(tmp_path):
    """They would be those of the original."""
    shutil.copy(ROOT / 'configs' / 'vse.py', tmp_path)
    get_config = runpy.run_path(str(tmp_path / 'vse.py'))['get_config']
    assert get_config('fc,max,coco') == module_of('vse').get_config('fc,max,coco')
    with pytest.raises(ValueError, match="has the unknown option 'f8k'"):
        get_config('fc,max,f8k')


DUAL_ENCODERS = 'locked_image', 'locked_text', 'bfloat16'  # options for these
PRETRAINED = (
    'clip:b32,softmax,f30k',
    'siglip:b16_224,sigmoid,f30k',
    'blip:base,softmax,f30k',
    'vse:rvsepp,selhn,f30k',
    'uniter:base,f30k',
    'oscar:alone,base,coco',
)


REGIONS = Images(
    regions=np.zeros((1, 36, 2048), np.float32),
    counts=np.full(1, 36, np.int32),
    locations=np.zeros((1, 36, 7), np.float32),
    tags=Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32)),
)
TEXTS = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32), vectors=np.zeros((1, 2, 384), np.float32))


@functools.cache
def parameters_of(section):
    """The shapes of the parameters of a model section, as JSON, with ten words."""
    model = json.loads(section)
    size = model.get('image', {}).get('image_size')
    images = Images(pixels=np.zeros((1, size, size, 3), np.uint8)) if size else REGIONS
    return jax.eval_shape(make_model(model, 10).init, jax.random.key(0), images, TEXTS)['params']


def check_trained(config):
    """Adds the adapters of each trained model, and starts its optimizer, which checks the modules that it names."""
    config = complete(config)
    plan = make_plan(config)
    for name, member in plan.members.items():
        if member.trains:
            params = parameters_of(json.dumps(plan.models[name]))
            adapted = jax.eval_shape(member.lora.add, jax.random.key(0), params)
            jax.eval_shape(member.with_parts(None, plan.make_optimizer(10)[0]).optimizer.init, adapted)
            assert (adapted != params) == bool(member.lora.modules)


@pytest.mark.parametrize('word', [pytest.param(word, marks=[NEEDS_MINILM] * (word == 'minilm')) for word in TUNING])
@pytest.mark.parametrize(
    'preset',
    [pytest.param(name, marks=[pytest.mark.slow] * (not name.startswith(('clip', 'vse')))) for name in PRETRAINED],
)
def test_a_word_of_tuning_changes_any_preset_that_has_what_it_needs(preset, word):
    system = preset.partition(':')[0]
    requirements = {
        'tokens': (('vse',), 'encoded images|a model whose text encoder is a GRU or a BERT'),
        'minilm': (('vse',), 'a model whose text encoder is a GRU or a BERT'),
        **dict.fromkeys(DUAL_ENCODERS, (('clip', 'siglip', 'blip'), 'a CLIP, SigLIP or BLIP')),
    }
    systems, requirement = requirements.get(word, ((system,), ''))
    if system not in systems:
        with pytest.raises(ValueError, match=f"'{word}' needs ({requirement})"):
            load(f'{preset},{word}')
        return
    config = load(f'{preset},{word}')
    assert config != load(preset)
    start(config)
    check_trained(config)
    assert load(preset.replace(':', f':{word},')) == config


def test_words_of_tuning_go_together_and_keep_those_of_a_file():
    config = load('clip:b16,half,ema,layerwise')
    assert config['optimizer']['factors'] == {'lower_50%': 0.0}
    assert config['optimizer']['layer_decay'] == 0.85
    assert config['members']['average'] == {'rule': 'ema', 'of': 'target', 'momentum': 0.998, 'constant': True}
    queue = load('vse:mean,softmax_queue')  # an average encodes the queue
    assert load('vse:mean,softmax_queue,ema') == queue | {'evaluation': queue['evaluation'] | {'member': 'average'}}
    assert load('vse:rvsepp,frozen')['optimizer']['factors'] == {'bert': 0.1, 'lower_100%': 0.0}
    assert load('vsepp:vgg19,frozen')['optimizer']['factors'] == {'network': 0.0}  # its own word
    assert load('vsepp:vgg19,frozen,minilm,lora')['optimizer']['factors'] == {'network': 0.0}
    assert 'itm_head' in load('blip:lora')['optimizer']['factors']
    start(load('blip:lora'))


@pytest.mark.parametrize(
    ('words', 'wrong'),
    [
        ('clip:rn50,lora', "'lora' needs towers that are transformers: the image tower is a ResNet"),
        ('clip:rn50,half', "'half' needs towers that are transformers"),
        ('clip:b32,frozen,lora', "what 'frozen' freezes"),
    ],
)
def test_options_of_layers_need_towers_that_they_can_change(words, wrong):
    with pytest.raises(ValueError, match=wrong):
        load(words)
