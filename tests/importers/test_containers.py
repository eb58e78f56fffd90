"""What training scripts put around weights, in files of torch."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.errors import UserError
from jitm.importers.containers import open_checkpoint
from jitm.importers.tensors import KeyMap
from tests.support.torch_pickles import Build, Call, Global, write_legacy, write_zip

NAMES = KeyMap({'image': 'visual.conv1', 'text/block_*': 'blocks.*.mlp', 'norm': 'ln'}, {'scale': 'scale'})
MODEL = {
    'visual.conv1.weight': np.ones((2, 3), np.float32),
    'blocks.0.mlp.weight': np.ones(2, np.float32),
    'blocks.11.mlp.bias': np.ones(1, np.float32),
    'ln.running_mean': np.zeros(2, np.float32),
    'scale': np.array(3, np.float32),
}
COUNTER = {'ln.num_batches_tracked': np.array(7)}
ADAM = {
    'state': {0: {'exp_avg': MODEL['ln.running_mean'], 'step': 1}},
    'param_groups': [{'lr': 0.1, 'betas': (0.9, 0.99)}],
}


def namespace(**options):
    return Build(Call(Global('argparse', 'Namespace'), ()), options)


def opened(path, content, write=write_zip):
    return open_checkpoint(write(path, content), 'a Model', NAMES.pattern())


def below(prefix, tensors=MODEL):
    return {prefix + name: x for name, x in tensors.items()}


@pytest.mark.parametrize('write', [write_zip, write_legacy])
@pytest.mark.parametrize(
    'content',
    [
        MODEL,
        below('module._orig_mod.'),
        {'epoch': 1, 'optimizer': ADAM, 'state_dict': below('_orig_mod.module.'), 'loss': MODEL['scale']},
        {'state_dict': below('model.'), 'optimizer_states': [ADAM], 'callbacks': {'x': {'best': MODEL['scale']}}},
        {'model_state_dict': MODEL, 'optimizer_state_dict': ADAM, 'model_state_dict_ema': MODEL},
        {'module': MODEL, 'lr_scheduler': {'_last_lr': [0.1]}},
        {'checkpoint': {'model': below('net.clip.')}, 'ema': below('net.clip.')},
        {**MODEL, 'optimizer': ADAM, 'rng_state': np.zeros(3, np.int8), 'step': 3},
        [{'epoch': 3}, MODEL],
        {'state_dict': below('model.') | {'loss_fn.scale': MODEL['scale'], 'head.weight': MODEL['scale']}},
        {name.replace('0.mlp', '0._checkpoint_wrapped_module.mlp'): x for name, x in MODEL.items()},
        {**MODEL, 'visual': Call(Global('torch', 'dtype'), ()), '_extra': np.dtype},
    ],
    ids=range(12),
)
def test_weights_are_found_in_every_container(tmp_path, write, content):
    tensors = opened(tmp_path / 'x.pth', content, write).tensors
    assert tensors.keys() == MODEL.keys()
    for name, read in tensors.items():
        np.testing.assert_array_equal(read(), MODEL[name])


def test_lists_of_modules_and_what_stands_beside_them(tmp_path):
    names = KeyMap({'a': '0.fc', 'b': '1.fc'})
    modules = [{'fc.weight': MODEL['scale']}, {'module.fc.weight': MODEL['scale']}]
    for number, content in enumerate(
        (modules, {'model': modules, 'x': MODEL['scale']}, {'0': modules[0], '1': modules[1], 'loss': MODEL['scale']})
    ):
        path = write_zip(tmp_path / f'{number}.pth', content)
        assert open_checkpoint(path, 'x', names.pattern()).tensors.keys() == {'0.fc.weight', '1.fc.weight'}


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (below('net.x.', {'a.weight': MODEL['scale'], 'b.weight': MODEL['scale']}), "all names start with 'net.x.'"),
        ({'a': MODEL['scale'], 'b': MODEL['scale']}, 'has no tensors of a Model: it has a, b; give the weights'),
        ({'model': Call(Global('net', 'Net'), ())}, "'model' is an object of 'net.Net', which is not read; save its"),
        (Call(Global('net', 'Net'), ()), "its content is an object of 'net.Net'"),
        ({}, 'it has none'),
        ({'best': MODEL, 'last': MODEL}, "has a Model below 'best' and below 'last': give a file with one"),
        ({'model': MODEL, 'state_dict': MODEL}, "has a Model below 'model' and below 'state_dict'"),
        (MODEL | {'module.scale': MODEL['scale']}, "has both 'scale' and 'module.scale'"),
    ],
    ids=range(8),
)
def test_other_files_are_one_sentence(tmp_path, content, message):
    with pytest.raises(UserError, match=re.escape(message)):
        opened(tmp_path / 'x.pth', content)


@pytest.mark.parametrize('dtype', [np.float16, jnp.bfloat16, np.int8, np.int64])
def test_weights_are_floating_point_numbers(tmp_path, dtype):
    read = opened(tmp_path / 'x.pth', {'model': MODEL | COUNTER | {'scale': MODEL['scale'].astype(dtype)}}).tensors[
        'scale'
    ]
    if jnp.issubdtype(dtype, jnp.floating):
        assert read() == 3
    else:
        with pytest.raises(UserError, match=rf"has the tensor 'model.scale' in {np.dtype(dtype)}, but weights"):
            read()


def test_a_weight_that_is_another_object_is_refused(tmp_path):
    read = opened(tmp_path / 'x.pth', MODEL | {'scale': Call(Global('torch', 'quantized'), ())}).tensors['scale']
    with pytest.raises(UserError, match=r"has 'scale' as an object of 'torch\.quantized', which is not read"):
        read()


@pytest.mark.parametrize(
    ('content', 'value'),
    [
        ({'opt': namespace(margin=0.2)}, 0.2),
        ({'opt': None, 'args': {'margin': 0.2}}, 0.2),
        ({'hyper_parameters': {'loss': {'opt': namespace(margin=MODEL['scale'])}}}, 3),
        ({'margin': 0.2, 'x': {'margin': 0.3}, 'config': {'margin': 0.4}}, 0.4),
        ({'opt': Build(Call(Global('types', 'SimpleNamespace'), ()), {'margin': [0.2]})}, [0.2]),
        ({'opt': {'margin': 0.2}, 'args': {'margin': 0.2}, 'cfg': Call(Global('x', 'Config'), ())}, 0.2),
        ({'opt': '{"margin": 0.2}'}, 0.2),
        ({'args': [('margin', '2e-1'), ('name', 'x')]}, 0.2),
        ({'opt': namespace(margin='0.2', config='x.yaml'), 'args': '[["margin", 0.2]]'}, 0.2),
        ({'opt': namespace(loss=0.2, config='x.yaml')}, 'none'),
        ({'args': ['train.py', '--margin', '0.2']}, "has 'args' = ['train.py', '--margin', '0.2'], not named options"),
        ({'opt': 'margin=0.2'}, "has 'opt' = 'margin=0.2', not named options: save a dict"),
        ({'opt': {'loss': 0.2}}, 'none'),
        ({'opt': {'margin': 0.2}, 'args': {'margin': 0.3}}, 'has opt.margin=0.2 and args.margin=0.3: leave one'),
        ({'opt': Call(Global('x', 'Config'), ())}, "has 'opt' as an object of 'x.Config', which is not read: save"),
    ],
    ids=range(15),
)
def test_options_are_found_anywhere(tmp_path, content, value):
    checkpoint = opened(tmp_path / 'x.pth', {'model': MODEL, **content})
    if isinstance(value, str) and value != 'none':
        with pytest.raises(UserError, match=re.escape(value)):
            checkpoint.option('margin')
    else:
        assert checkpoint.option('margin', 'none') == value


def test_metadata_of_safetensors_are_options(tmp_path):
    metadata = {'opt': '{"margin": 0.2}', 'format': 'pt', 'epoch': '3'}
    save_file(below('model.'), tmp_path / 'x.safetensors', metadata)
    checkpoint = open_checkpoint(str(tmp_path / 'x.safetensors'), 'a Model', NAMES.pattern())
    assert (checkpoint.tensors.keys(), checkpoint.option('margin'), checkpoint.option('epoch')) == (
        MODEL.keys(),
        0.2,
        3,
    )
    save_file(MODEL, tmp_path / 'x.safetensors', {'args': '[]'})
    with pytest.raises(UserError, match="has metadata 'args' that are not a JSON object"):
        open_checkpoint(str(tmp_path / 'x.safetensors'), 'a Model', NAMES.pattern())
