import dataclasses
import functools
import itertools
import json
import pathlib
import re

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.data.bpe import BPE
from jitm.errors import UserError
from jitm.importers import clip_config
from jitm.importers.clip import load_clip
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.configs.settings import load as load_setting
from tests.importers.torch_pickles import modules, write_zip
from tests.parity.bounds import assert_within

E, WIDTH, HEADS, LAYERS, PATCH, SIZE, LENGTH = 12, 16, 2, 2, 8, 16, 10
MERGES = ('t h', 'th e</w>')
V = 512 + len(MERGES) + 2


def write_merges(folder, merges=MERGES) -> str:
    path = folder / 'merges.txt'
    path.write_text('\n'.join(['#version: 0.2', *merges]) + '\n', encoding='utf-8')
    return str(path)


def block_shapes(prefix):
    shapes = {}
    for part in ('q', 'k', 'v', 'out'):
        layer = f'{prefix}.self_attn.{part}_proj'
        shapes |= {f'{layer}.weight': (WIDTH, WIDTH), f'{layer}.bias': (WIDTH,)}
    for norm in ('layer_norm1', 'layer_norm2'):
        shapes |= {f'{prefix}.{norm}.weight': (WIDTH,), f'{prefix}.{norm}.bias': (WIDTH,)}
    shapes |= {f'{prefix}.mlp.fc1.weight': (4 * WIDTH, WIDTH), f'{prefix}.mlp.fc1.bias': (4 * WIDTH,)}
    return shapes | {f'{prefix}.mlp.fc2.weight': (WIDTH, 4 * WIDTH), f'{prefix}.mlp.fc2.bias': (WIDTH,)}


def hugging_face() -> dict[str, np.ndarray]:
    """Tensors as `CLIPModel` names them."""
    shapes = {
        'logit_scale': (),
        'text_projection.weight': (E, WIDTH),
        'visual_projection.weight': (E, WIDTH),
        'text_model.embeddings.token_embedding.weight': (V, WIDTH),
        'text_model.embeddings.position_embedding.weight': (LENGTH, WIDTH),
        'vision_model.embeddings.class_embedding': (WIDTH,),
        'vision_model.embeddings.patch_embedding.weight': (WIDTH, 3, PATCH, PATCH),
        'vision_model.embeddings.position_embedding.weight': (1 + (SIZE // PATCH) ** 2, WIDTH),
    }
    for norm in ('text_model.final_layer_norm', 'vision_model.pre_layrnorm', 'vision_model.post_layernorm'):
        shapes |= {f'{norm}.weight': (WIDTH,), f'{norm}.bias': (WIDTH,)}
    for tower, n in itertools.product(('text_model', 'vision_model'), range(LAYERS)):
        shapes |= block_shapes(f'{tower}.encoder.layers.{n}')
    rng = np.random.default_rng(0)
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}


def open_clip(tensors) -> dict[str, np.ndarray]:
    """The same tensors with the names of OpenAI and open_clip."""
    new = {
        'logit_scale': tensors['logit_scale'],
        'text_projection': tensors['text_projection.weight'].T,
        'visual.proj': tensors['visual_projection.weight'].T,
        'token_embedding.weight': tensors['text_model.embeddings.token_embedding.weight'],
        'positional_embedding': tensors['text_model.embeddings.position_embedding.weight'],
        'visual.class_embedding': tensors['vision_model.embeddings.class_embedding'],
        'visual.conv1.weight': tensors['vision_model.embeddings.patch_embedding.weight'],
        'visual.positional_embedding': tensors['vision_model.embeddings.position_embedding.weight'],
    }
    for leaf in ('weight', 'bias'):
        new[f'ln_final.{leaf}'] = tensors[f'text_model.final_layer_norm.{leaf}']
        new[f'visual.ln_pre.{leaf}'] = tensors[f'vision_model.pre_layrnorm.{leaf}']
        new[f'visual.ln_post.{leaf}'] = tensors[f'vision_model.post_layernorm.{leaf}']
        for (theirs, ours), n in itertools.product(
            {'transformer': 'text_model', 'visual.transformer': 'vision_model'}.items(), range(LAYERS)
        ):
            block, old = f'{theirs}.resblocks.{n}', f'{ours}.encoder.layers.{n}'
            packed = [tensors[f'{old}.self_attn.{part}_proj.{leaf}'] for part in 'qkv']
            new[f'{block}.attn.in_proj_{leaf}'] = np.concatenate(packed)
            new[f'{block}.attn.out_proj.{leaf}'] = tensors[f'{old}.self_attn.out_proj.{leaf}']
            new[f'{block}.ln_1.{leaf}'] = tensors[f'{old}.layer_norm1.{leaf}']
            new[f'{block}.ln_2.{leaf}'] = tensors[f'{old}.layer_norm2.{leaf}']
            new[f'{block}.mlp.c_fc.{leaf}'] = tensors[f'{old}.mlp.fc1.{leaf}']
            new[f'{block}.mlp.c_proj.{leaf}'] = tensors[f'{old}.mlp.fc2.{leaf}']
    return {name: np.array(tensor, order='C') for name, tensor in new.items()}


def hugging_face_config(**changes):
    common = {
        'hidden_size': WIDTH,
        'intermediate_size': 4 * WIDTH,
        'num_hidden_layers': LAYERS,
        'num_attention_heads': HEADS,
        'hidden_act': 'quick_gelu',
    }
    text = common | {'max_position_embeddings': LENGTH, 'vocab_size': V, 'eos_token_id': V - 1}
    vision = common | {'image_size': SIZE, 'patch_size': PATCH}
    config = {'model_type': 'clip', 'projection_dim': E, 'text_config': text, 'vision_config': vision}
    for key, value in changes.items():
        section, _, name = key.rpartition('__')
        (config[section] if section else config)[name] = value
    return config


def open_clip_config(**changes):
    vision = {'image_size': SIZE, 'layers': LAYERS, 'width': WIDTH, 'patch_size': PATCH, 'head_width': WIDTH // HEADS}
    text = {'context_length': LENGTH, 'vocab_size': V, 'width': WIDTH, 'heads': HEADS, 'layers': LAYERS}
    model = {'embed_dim': E, 'quick_gelu': True, 'vision_cfg': vision, 'text_cfg': text} | changes
    return {'model_cfg': model, 'preprocess_cfg': {'mean': list(CLIP_MEAN), 'std': list(CLIP_DEVIATION)}}


def write(folder, tensors, config, scheme='hugging_face'):
    folder.mkdir(exist_ok=True)
    prefix = '' if scheme == 'hugging_face' else 'open_clip_'
    (folder / f'{prefix}config.json').write_text(json.dumps(config))
    save_file(tensors, folder / f'{prefix}model.safetensors')
    write_merges(folder)
    return str(folder)


def write_published(folder, size, max_length=77) -> str:
    """Writes a folder of Hugging Face, of a tiny CLIP that reads images and texts of some size."""
    tensors, rng = hugging_face(), np.random.default_rng(3)
    for tower, length in (('vision', 1 + (size // PATCH) ** 2), ('text', max_length)):
        values = rng.normal(size=(length, WIDTH)).astype(np.float32)
        tensors[f'{tower}_model.embeddings.position_embedding.weight'] = values
    config = hugging_face_config(vision_config__image_size=size, text_config__max_position_embeddings=max_length)
    return write(folder, tensors, config)


def test_tensors_become_parameters(tmp_path):
    tensors = hugging_face()
    published = load_clip(write(tmp_path, tensors, hugging_face_config()))
    params = published.variables['params']
    x = np.random.default_rng(1).normal(size=WIDTH).astype(np.float32)
    for side, tower in (('text', 'text_model'), ('image', 'vision_model')):
        block, prefix = params[side]['encoder']['block_1'], f'{tower}.encoder.layers.1'
        for ours, theirs in (('query', 'q'), ('key', 'k'), ('value', 'v')):
            weight, bias = (tensors[f'{prefix}.self_attn.{theirs}_proj.{leaf}'] for leaf in ('weight', 'bias'))
            kernel = block['attention'][ours]['kernel']
            got = np.einsum('i,ihd->hd', x, kernel) + block['attention'][ours]['bias']
            np.testing.assert_allclose(got.ravel(), weight @ x + bias, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(block['mlp_in']['kernel'], tensors[f'{prefix}.mlp.fc1.weight'].T)
        np.testing.assert_array_equal(block['mlp_norm']['scale'], tensors[f'{prefix}.layer_norm2.weight'])
    patches = tensors['vision_model.embeddings.patch_embedding.weight']
    np.testing.assert_array_equal(params['image']['patches']['kernel'][3, 5, 2], patches[:, 2, 3, 5])
    assert params['logit_scale'] == tensors['logit_scale']
    assert published.vocabulary == BPE.of(MERGES, LENGTH)
    assert published.model['image']['activation'] == 'quick_gelu'


def test_all_names_give_the_same_parameters(tmp_path):
    tensors = hugging_face()
    want = load_clip(write(tmp_path / 'hugging_face', tensors, hugging_face_config()))
    folder = write(tmp_path / 'open_clip', open_clip(tensors), open_clip_config(), 'open_clip')
    got = load_clip(folder)
    chex.assert_trees_all_equal(got.variables, want.variables)
    assert (got.model, got.vocabulary) == (want.model, want.vocabulary)
    trained = {f'module.{name}': tensor for name, tensor in open_clip(tensors).items()}
    trained |= {'module.input_resolution': np.zeros((), np.int64)}
    again = load_clip(write(tmp_path / 'trained', trained, open_clip_config(), 'open_clip'))
    chex.assert_trees_all_equal(again.variables, want.variables)
    custom = {f'text.{name}' if 'visual' not in name else name: x for name, x in open_clip(tensors).items()}
    custom['logit_scale'] = custom.pop('text.logit_scale')
    custom_config = open_clip_config(custom_text=True)
    again = load_clip(write(tmp_path / 'custom_text', custom, custom_config, 'open_clip'))  # a CustomTextCLIP
    chex.assert_trees_all_equal(again.variables, want.variables)
    half = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    halved = load_clip(write(tmp_path / 'half', half, hugging_face_config())).variables
    chex.assert_trees_all_equal_shapes_and_dtypes(halved, want.variables)
    by_file = load_clip(f'{folder}/open_clip_model.safetensors', f'{folder}/merges.txt')
    chex.assert_trees_all_equal(by_file.variables, want.variables)


def test_the_activation_and_the_pixels_are_read(tmp_path):
    changed = hugging_face_config(text_config__hidden_act='gelu')
    folder = write(tmp_path, hugging_face(), changed)
    (tmp_path / 'preprocessor_config.json').write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.5, 1]}')
    model = load_clip(folder).model
    assert (model['text']['activation'], model['image']['activation']) == ('gelu', 'quick_gelu')
    assert (model['image']['mean'], model['image']['deviation']) == ((0.5, 0.5, 0.5), (0.25, 0.5, 1))


PROCESSOR = {  # of transformers
    'do_resize': True,
    'size': {'shortest_edge': SIZE},
    'resample': 3,
    'do_center_crop': True,
    'crop_size': {'height': SIZE, 'width': SIZE},
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
}


def read_with_processor(folder, **changes):
    """The model of a config of Hugging Face with the processor of its pixels."""
    (folder / 'config.json').write_text(json.dumps(hugging_face_config()))
    (folder / 'preprocessor_config.json').write_text(json.dumps(PROCESSOR | changes))
    return clip_config.read_config(folder / 'config.json')


def read_with_preprocessing(folder, **changes):
    """The model of a config of open_clip with this `preprocess_cfg`."""
    path = folder / 'open_clip_config.json'
    path.write_text(json.dumps(open_clip_config() | {'preprocess_cfg': changes}))
    return clip_config.read_config(path)


@pytest.mark.parametrize(
    ('read', 'changes'),
    [
        (read_with_processor, {}),
        (read_with_processor, {'size': SIZE, 'crop_size': SIZE, 'resample': None}),  # as of 2021
        (read_with_preprocessing, {}),
        (read_with_preprocessing, {'size': SIZE, 'mode': 'RGB', 'interpolation': 'bicubic', 'resize_mode': 'shortest'}),
        (read_with_preprocessing, {'mean': None, 'std': [1, 1, 1]}),
        (read_with_preprocessing, {'size': [SIZE, SIZE], 'interpolation': 'random', 'resize_mode': None}),
    ],
)
def test_the_preprocessing_of_clip_is_read(tmp_path, read, changes):
    assert read(tmp_path, **changes)['image']['mean'] == CLIP_MEAN


@pytest.mark.parametrize(
    ('read', 'key', 'value', 'wanted'),
    [
        (read_with_processor, 'resample', 2, '3'),
        (read_with_processor, 'size', 20, "{'shortest_edge': 16}"),
        (read_with_processor, 'size', {'height': SIZE, 'width': SIZE}, "{'shortest_edge': 16}"),
        (read_with_processor, 'crop_size', {'height': 20, 'width': SIZE}, "{'height': 16, 'width': 16}"),
        (read_with_processor, 'do_resize', False, 'True'),
        (read_with_processor, 'do_center_crop', False, 'True'),
        (read_with_processor, 'do_rescale', False, 'True'),
        (read_with_processor, 'rescale_factor', 1 / 127.5, '0.00392156862745098'),
        (read_with_processor, 'do_normalize', False, 'True'),
        (read_with_preprocessing, 'resize_mode', 'squash', "'shortest'"),
        (read_with_preprocessing, 'resize_mode', 'longest', "'shortest'"),
        (read_with_preprocessing, 'interpolation', 'bilinear', "'bicubic'"),
        (read_with_preprocessing, 'size', [20, 20], '16'),
        (read_with_preprocessing, 'mode', 'L', "'RGB'"),
    ],
)
def test_another_preprocessing_is_refused(tmp_path, read, key, value, wanted):
    file = {read_with_processor: 'preprocessor_config', read_with_preprocessing: 'open_clip_config'}[read]
    message = f"{file}.json sets '{key}' to {value!r}, but a CLIP is converted with {wanted} only: give another model"
    with pytest.raises(UserError, match=re.escape(message) + '$'):
        read(tmp_path, **{key: value})


@pytest.mark.parametrize(
    ('section', 'key', 'value', 'wanted'),
    [
        (None, 'model_cfg', [], 'a JSON object'),
        (None, 'preprocess_cfg', None, 'a JSON object'),
        ('model_cfg', 'embed_dim', None, 'a whole number above 0'),
        ('model_cfg', 'vision_cfg', 1, 'a JSON object'),
        ('model_cfg', 'quick_gelu', 'yes', 'true or false'),
        ('vision_cfg', 'width', '12', 'a whole number above 0'),
        ('vision_cfg', 'head_width', 0, 'a whole number above 0'),
        ('vision_cfg', 'image_size', [16, 16], 'a whole number above 0'),
        ('vision_cfg', 'layers', None, 'a whole number above 0'),
        ('text_cfg', 'mlp_ratio', None, 'a number above 0'),
        ('preprocess_cfg', 'mean', 0.5, 'three numbers'),
        ('preprocess_cfg', 'mean', [], 'three numbers'),
        ('preprocess_cfg', 'std', [1, 1, 0], 'three numbers above 0'),
    ],
)
def test_damaged_configs_of_open_clip_are_refused(tmp_path, section, key, value, wanted):
    content = open_clip_config() | {'preprocess_cfg': {}}
    model = content['model_cfg']
    {None: content, 'model_cfg': model, **model, **content}[section][key] = value
    path = tmp_path / 'open_clip_config.json'
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"open_clip_config.json (has|sets) '{key}' .* must be {wanted}"):
        clip_config.read_config(path)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'layers': [1, 2], 'patch_size': None}, r"has 'layers' \[1, 2\]; it must be four whole numbers above 0"),
        ({'head_width': 64}, "has a 'head_width' above the 'width'"),
    ],
)
def test_impossible_sizes_of_open_clip_are_refused(tmp_path, changes, message):
    content = open_clip_config()
    content['model_cfg']['vision_cfg'] |= changes
    (tmp_path / 'open_clip_config.json').write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        clip_config.read_config(tmp_path / 'open_clip_config.json')


@pytest.mark.parametrize('value', [None, [224], '224', 0, -1, 1.5, True])
def test_damaged_configs_of_hugging_face_are_refused(tmp_path, value):
    content = hugging_face_config()
    content['vision_config']['image_size'] = value
    (tmp_path / 'config.json').write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"config.json has 'image_size' {re.escape(repr(value))}; it must be a whole"):
        clip_config.read_config(tmp_path / 'config.json')


NUMBERS = {  # that OpenAI's files hold beside the weights
    'input_resolution': np.array(SIZE),
    'context_length': np.array(LENGTH),
    'vocab_size': np.array(V),
    'transformer.resblocks.0.attn_mask': np.zeros((LENGTH, LENGTH)),
}


def write_openai(folder, tensors):
    """Writes a file as OpenAI publishes it: an archive of TorchScript in half precision, with its program."""
    folder.mkdir(exist_ok=True)
    write_merges(folder)
    half = {name: np.asarray(tensor, np.float16) for name, tensor in tensors.items()}
    program = [('code/__torch__.py', 'raise SystemExit'), ('constants.pkl', 'not read')]
    return write_zip(folder / 'ViT-B-32.pt', modules(half, 'HalfStorage'), root='ViT-B-32', extra=program)


def test_files_of_openai_need_no_config(tmp_path, monkeypatch):
    monkeypatch.setattr(clip_config, 'HEAD_SIZE', WIDTH // HEADS)
    tensors = {name: tensor.astype(np.float16) for name, tensor in open_clip(hugging_face()).items()}
    want = load_clip(write(tmp_path / 'open_clip', tensors, open_clip_config(), 'open_clip'))
    path = write_openai(tmp_path / 'openai', tensors | NUMBERS)
    got = load_clip(path)
    assert (got.model, got.vocabulary) == (want.model, want.vocabulary)
    chex.assert_trees_all_equal(got.variables, want.variables)
    (tmp_path / 'openai' / 'merges.txt').rename(tmp_path / 'merges')
    with pytest.raises(UserError, match=r'no merges\.txt, tokenizer\.json or bpe_.*gz: add one, or give --vocabulary'):
        load_clip(path)
    assert load_clip(path, str(tmp_path / 'merges')).vocabulary == got.vocabulary


PUBLISHED = {  # width of the text encoder and D; blocks, and shapes of the tensors that state the image encoder's sizes
    'b32': (512, 512, 12, {'conv1.weight': (768, 3, 32, 32), 'positional_embedding': (50, 768)}),
    'b16': (512, 512, 12, {'conv1.weight': (768, 3, 16, 16), 'positional_embedding': (197, 768)}),
    'l14': (768, 768, 24, {'conv1.weight': (1024, 3, 14, 14), 'positional_embedding': (257, 1024)}),
    'l14_336': (768, 768, 24, {'conv1.weight': (1024, 3, 14, 14), 'positional_embedding': (577, 1024)}),
    'rn50': (512, 1024, (3, 4, 6, 3), {'attnpool.positional_embedding': (50, 2048)}),
    'rn101': (512, 512, (3, 4, 23, 3), {'attnpool.positional_embedding': (50, 2048)}),
}


@pytest.mark.parametrize('size', PUBLISHED)
def test_published_sizes_of_openai_are_those_of_the_settings(size):
    width, embed_dim, blocks, image = PUBLISHED[size]
    shapes = {'positional_embedding': (77, width), 'text_projection': (width, embed_dim)}
    shapes |= {f'transformer.resblocks.{n}.ln_1.weight': (width,) for n in range(12)}
    shapes |= {f'visual.{name}': shape for name, shape in image.items()}
    if isinstance(blocks, tuple):
        layers = {
            f'visual.layer{n}.{m}.conv1.weight': (64, 64, 1, 1) for n in range(1, 5) for m in range(blocks[n - 1])
        }
    else:
        layers = {f'visual.transformer.resblocks.{n}.ln_1.weight': (width,) for n in range(blocks)}
        layers['visual.proj'] = (image['conv1.weight'][0], embed_dim)
    tensors = {name: functools.partial(np.broadcast_to, 0, shape) for name, shape in (shapes | layers).items()}
    got = clip_config.read_openai(pathlib.Path('ViT.pt'), tensors)
    assert got == load_setting(f'clip:{size},softmax,f30k')['model']


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda t: t.pop('input_resolution'), 'has no open_clip_config.json and no config.json, which state the sizes'),
        (lambda t: t.pop('text_projection'), "has no tensor 'text_projection' with 2 axes: give weights of the system"),
        (lambda t: t.update({'visual.proj': t['visual.proj'][0]}), "'visual.proj' of shape .12. where"),
        (lambda t: t.update({'visual.conv1.weight': t['visual.proj']}), "no tensor 'visual.conv1.weight' with 4 axes"),
        (
            lambda t: t.pop('transformer.resblocks.1.ln_1.bias'),
            'lacks tensors .transformer.resblocks.1.ln_1.bias',
        ),
    ],
)
def test_damaged_files_of_openai_are_refused(tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(clip_config, 'HEAD_SIZE', WIDTH // HEADS)
    tensors = open_clip(hugging_face()) | NUMBERS
    change(tensors)
    with pytest.raises(UserError, match=message):
        load_clip(write_openai(tmp_path, tensors))


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ('change', 'config', 'message'),
    [
        (lambda t: without(t, 'text_projection.weight'), {}, 'lacks tensors .text_projection.weight.'),
        (lambda t: t | {'new.weight': np.zeros(2, np.float32)}, {}, 'has unknown tensors .new.weight.'),
        (lambda t: t | {'logit_scale': np.zeros(2, np.float32)}, {}, "tensor 'logit_scale' of shape"),
        (None, {'model_type': 'siglip'}, "has the model_type 'siglip'"),
        (None, {'vision_config__hidden_act': 'relu'}, "has the hidden_act 'relu'"),
        (None, {'vision_config__layer_norm_eps': 1e-6}, 'has layer_norm_eps 1e-06'),
        (None, {'vision_config__image_size': 30}, "image.image_size' is 30, no multiple of patch_size 8"),
        (None, {'text_config__eos_token_id': 7}, 'has eos_token_id 7'),
        (None, {'text_config': ['x']}, "no JSON object as 'text_config'"),
        (None, {'text_config__num_hidden_layers': 3}, 'lacks tensors'),
        (None, {'projection_dim': 5}, "tensor '(text|visual)_projection.weight' of shape"),
    ],
)
def test_other_models_are_refused(tmp_path, change, config, message):
    tensors = hugging_face() if change is None else change(hugging_face())
    folder = write(tmp_path, tensors, hugging_face_config(**config))
    with pytest.raises(UserError, match=message):
        load_clip(folder)


def test_other_models_of_open_clip_are_refused(tmp_path):
    tensors = open_clip(hugging_face())
    timm = {name.replace('visual.', 'visual.trunk.'): tensor for name, tensor in tensors.items()}
    with pytest.raises(UserError, match=r'has unknown tensors \(visual.trunk.'):
        load_clip(write(tmp_path / 'trunk', timm, open_clip_config(), 'open_clip'))
    vision = open_clip_config()['model_cfg']['vision_cfg'] | {'timm_model_name': 'vit'}
    with pytest.raises(UserError, match="sets 'timm_model_name' to 'vit'"):
        load_clip(write(tmp_path / 'timm', tensors, open_clip_config(vision_cfg=vision), 'open_clip'))
    with pytest.raises(UserError, match="has 'vision_cfg' None; it must be a JSON object"):
        load_clip(write(tmp_path / 'none', tensors, open_clip_config(vision_cfg=None), 'open_clip'))


def test_missing_files_are_refused(tmp_path):
    folder = tmp_path / 'clip'
    with pytest.raises(UserError, match='does not exist'):
        load_clip(str(folder))
    write(folder, hugging_face(), hugging_face_config())
    (folder / 'merges.txt').write_text('#version: 0.2\nt h\n', encoding='utf-8')
    with pytest.raises(UserError, match=f'has 515 pieces, but .* has {V}'):
        load_clip(str(folder))
    (folder / 'merges.txt').unlink()
    with pytest.raises(UserError, match='give --vocabulary'):
        load_clip(str(folder))
    (folder / 'config.json').write_text('{')
    with pytest.raises(UserError, match='cannot be read as JSON'):
        load_clip(str(folder), str(write_merges(tmp_path)))
    (folder / 'config.json').unlink()
    with pytest.raises(UserError, match=r'has no config.json with model.safetensors or'):
        load_clip(str(folder))
    with pytest.raises(UserError, match=r'no open_clip_config\.json and no config\.json'):
        load_clip(str(folder / 'model.safetensors'))


@dataclasses.dataclass
class Example:
    """Images and texts, as both libraries read them."""

    pixels: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def make(cls, image_size: int, vocab_size: int, length: int) -> 'Example':
        rng = np.random.default_rng(2)
        lengths = np.array([length, 4, 7], np.int32)
        ids = rng.integers(3, vocab_size - 2, (3, length))
        ids[:, 0], ids[np.arange(3), lengths - 1] = vocab_size - 2, vocab_size - 1
        ids[np.arange(length) >= lengths[:, None]] = 0
        return cls(rng.integers(0, 256, (3, image_size, image_size, 3), np.uint8), ids, lengths)

    def normalized(self):
        torch = pytest.importorskip('torch')
        pixels = (self.pixels / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_DEVIATION)
        return torch.tensor(pixels.transpose(0, 3, 1, 2).astype(np.float32))

    def encode(self, published):
        model = make_model(published.model, len(published.vocabulary))

        def encode(matcher):
            texts = Texts(self.ids.astype(np.int32), self.lengths)
            return matcher.encode_image(Images(pixels=self.pixels)), matcher.encode_text(texts), matcher.temperature

        images, texts, temperature = jax.jit(lambda v: model.apply(v, method=encode))(published.variables)
        return images, texts, images @ texts.T / temperature


def assert_agree(got, images, texts, scale):
    images, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images.numpy(), texts.numpy()))
    for ours, theirs in zip(got, (images, texts, scale * images @ texts.T), strict=True):
        assert_within('CLIP', ours, theirs)


def spread(model):
    """Spreads the parameters, so that every part of the formulas shows."""
    torch = pytest.importorskip('torch')
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != 'logit_scale':
                parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if 'running' in name:
                buffer.add_(torch.rand_like(buffer))
        model.logit_scale.fill_(np.log(100.0))
    return model.eval()


@pytest.mark.parametrize(('activation', 'end'), [('gelu', 2), ('quick_gelu', 49407)])
def test_agrees_with_transformers(tmp_path, activation, end):
    transformers = pytest.importorskip('transformers')
    torch = pytest.importorskip('torch')
    vocab_size = V if end == 2 else 49408
    characters = BPE.of(()).words[:256]
    merges = MERGES if end == 2 else [f'{a} {b}' for a, b in itertools.product(characters, characters)][:48894]
    changes = {'text_config__vocab_size': vocab_size, 'text_config__eos_token_id': end}
    config = hugging_face_config(vision_config__hidden_act=activation, text_config__hidden_act=activation, **changes)
    model = spread(transformers.CLIPModel(transformers.CLIPConfig(**config)))
    model.save_pretrained(tmp_path)
    write_merges(tmp_path, merges)
    example = Example.make(SIZE, vocab_size, LENGTH)
    with torch.no_grad():
        mask = torch.tensor(np.arange(LENGTH) < example.lengths[:, None]).long()
        out = model(input_ids=torch.tensor(example.ids), attention_mask=mask, pixel_values=example.normalized())
    got = example.encode(load_clip(str(tmp_path)))
    assert_agree(got, out.image_embeds, out.text_embeds, 100.0)
    assert_within('CLIP', got[2], out.logits_per_image)


RESNET = {'image_size': 64, 'layers': [1, 2, 1, 1], 'width': 8, 'head_width': 64, 'patch_size': None}


@pytest.mark.parametrize('kind', ['vit', 'custom', 'resnet'])
def test_agrees_with_open_clip(tmp_path, kind):
    model_lib = pytest.importorskip('open_clip.model')
    torch = pytest.importorskip('torch')
    changes = {'vision_cfg': RESNET} if kind == 'resnet' else {'quick_gelu': False}
    config = open_clip_config(**changes)
    kind_of_model = model_lib.CustomTextCLIP if kind == 'custom' else model_lib.CLIP
    model = spread(kind_of_model(**config['model_cfg']))
    config['model_cfg'] |= {'custom_text': True} if kind == 'custom' else {}
    tensors = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    folder = write(tmp_path, tensors, config, 'open_clip')
    example = Example.make(config['model_cfg']['vision_cfg']['image_size'], V, LENGTH)
    with torch.no_grad():
        images = model.encode_image(example.normalized())
        texts = model.encode_text(torch.tensor(example.ids))
        cells = cells_of(model.visual, example.normalized())
    published = load_clip(folder)
    assert_agree(example.encode(published), images, texts, 100.0)
    network = make_model(published.model, V)
    got = network.apply(published.variables, Images(pixels=example.pixels), method=lambda m, x: m.image.features(x))
    assert_within('CLIP', got, cells)


def cells_of(visual, pixels):
    """The states of the patches after the last normalization, or the cells of the last map, [I, R, F]."""
    if not hasattr(visual, 'stem'):
        visual.output_tokens = True
        return visual(pixels)[1].numpy()
    kept = []
    visual.layer4.register_forward_hook(lambda module, inputs, output: kept.append(output.numpy()))
    visual(pixels)
    return kept[0].reshape(*kept[0].shape[:2], -1).transpose(0, 2, 1)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ['vit', 'resnet'])
def test_archives_of_torchscript_agree_with_open_clip(tmp_path, monkeypatch, kind):
    """A model as OpenAI publishes it: traced, with three numbers as buffers."""
    model_lib = pytest.importorskip('open_clip.model')
    torch = pytest.importorskip('torch')
    monkeypatch.setattr(clip_config, 'HEAD_SIZE', WIDTH // HEADS)
    config = open_clip_config(**{'vision_cfg': RESNET | {'head_width': WIDTH // HEADS}} if kind == 'resnet' else {})
    model = spread(model_lib.CLIP(**config['model_cfg']))
    example = Example.make(config['model_cfg']['vision_cfg']['image_size'], V, LENGTH)
    pixels, ids = example.normalized(), torch.tensor(example.ids)
    with torch.no_grad():
        images, texts = model.encode_image(pixels), model.encode_text(ids)
        for name in ('input_resolution', 'context_length', 'vocab_size'):
            model.__dict__.pop(name, None)
            model.register_buffer(name, torch.tensor(7))
        traced = torch.jit.trace_module(model, {'encode_image': pixels, 'encode_text': ids})
    traced.save(str(tmp_path / 'model.pt'))
    write_merges(tmp_path)
    assert_agree(example.encode(load_clip(str(tmp_path / 'model.pt'))), images, texts, 100.0)
