import copy
import dataclasses
import functools
import itertools
import json
import operator
import pathlib
import re

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.data.text.pieces import BPE
from jitm.errors import UserError
from jitm.importers import clip_config
from jitm.importers.clip_weights import HUGGING_FACE, OPENAI, load_clip
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
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


def full_size_merges() -> list[str]:
    """As many merges as CLIP has."""
    characters = BPE.of(()).words[:256]
    return [f'{a} {b}' for a, b in itertools.product(characters, characters)][:48894]


def model_of(size=SIZE, length=LENGTH):
    """The config's `model` of a tiny CLIP."""
    tower = {'hidden_dim': WIDTH, 'num_layers': LAYERS, 'num_heads': HEADS, 'mlp_dim': 4 * WIDTH, 'dtype': 'float32'}
    tower |= {'activation': 'quick_gelu'}
    pixels = {'image_size': size, 'patch_size': PATCH, 'mean': CLIP_MEAN, 'deviation': CLIP_DEVIATION}
    return {
        'name': 'clip.CLIP',
        'embed_dim': E,
        'image': {'name': 'vit.ViT', **pixels, **tower},
        'text': {'name': 'clip_text.CausalTransformer', 'max_length': length, **tower},
        'initial_temperature': 0.07,
    }


def draw(model, words):
    """Random variables of a model."""
    size, rng = model['image']['image_size'], np.random.default_rng(0)
    shapes = shapes_of(model, words, Images(pixels=np.zeros((1, size, size, 3), np.uint8)))
    drawn = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return {'params': {}, 'batch_stats': {}} | drawn


@functools.cache
def variables(**sizes):
    return draw(model_of(**sizes), V)


def hugging_face(**sizes) -> dict[str, np.ndarray]:
    """Tensors as `CLIPModel` names them, which transformers verifies below."""
    return export(variables(**sizes), HUGGING_FACE)


def open_clip() -> dict[str, np.ndarray]:
    """The same tensors with the names of OpenAI and open_clip, which open_clip verifies below."""
    return {name: np.array(tensor, order='C') for name, tensor in export(variables(), OPENAI).items()}


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
    config = hugging_face_config(vision_config__image_size=size, text_config__max_position_embeddings=max_length)
    return write(folder, hugging_face(size=size, length=max_length), config)


@pytest.mark.slow
def test_all_names_give_the_same_parameters(tmp_path):
    openai = open_clip()
    custom = {name if name.startswith(('visual', 'logit')) else f'text.{name}': x for name, x in openai.items()}
    trained = {f'module.{name}': x for name, x in openai.items()} | {'module.input_resolution': np.zeros((), np.int64)}
    for number, (tensors, config, scheme) in enumerate(
        (
            (hugging_face(), hugging_face_config(), 'hugging_face'),
            (trained, open_clip_config(), 'open_clip'),
            (custom, open_clip_config(custom_text=True), 'open_clip'),  # a CustomTextCLIP
            (openai, open_clip_config(), 'open_clip'),
        )
    ):
        folder = write(tmp_path / str(number), tensors, config, scheme)
        published = load_clip(folder)
        chex.assert_trees_all_equal(published.variables, variables())
        assert (published.model, published.vocabulary) == (model_of(), BPE.of(MERGES, LENGTH))
    by_file = load_clip(f'{folder}/open_clip_model.safetensors', f'{folder}/merges.txt')
    chex.assert_trees_all_equal(by_file.variables, variables())


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
CONFIG, PIXELS, OPEN_CLIP = 'config.json', 'preprocessor_config.json', 'open_clip_config.json'
CONFIGS = {CONFIG: hugging_face_config(), PIXELS: PROCESSOR, OPEN_CLIP: open_clip_config()}


def read_changed(folder, file, changes):
    """The model of configs of which one has other values, by their dotted keys."""
    contents = copy.deepcopy(CONFIGS)
    for key, value in changes.items():
        *sections, leaf = key.split('.')
        functools.reduce(operator.getitem, sections, contents[file])[leaf] = value
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    if file == OPEN_CLIP:
        return clip_config.read_open_clip(folder / OPEN_CLIP)
    return clip_config.read_hugging_face(folder / CONFIG)


@pytest.mark.parametrize(
    ('file', 'changes'),
    [
        (PIXELS, {}),
        (PIXELS, {'size': SIZE, 'crop_size': SIZE, 'resample': None}),  # as of 2021
        (OPEN_CLIP, {'preprocess_cfg': {'mean': None, 'std': [1, 1, 1]}}),
        (OPEN_CLIP, {'preprocess_cfg.size': [SIZE, SIZE], 'preprocess_cfg.interpolation': 'random'}),
        (OPEN_CLIP, {'preprocess_cfg.mode': 'RGB', 'preprocess_cfg.resize_mode': 'shortest'}),
    ],
)
def test_the_preprocessing_of_clip_is_read(tmp_path, file, changes):
    assert read_changed(tmp_path, file, changes)['image']['mean'] == CLIP_MEAN


def test_the_activation_and_the_pixels_are_read(tmp_path):
    pixels = {'image_mean': [0.5, 0.5, 0.5], 'image_std': [0.25, 0.5, 1]}
    image = read_changed(tmp_path, PIXELS, pixels)['image']
    assert (image['mean'], image['deviation']) == ((0.5, 0.5, 0.5), (0.25, 0.5, 1))
    model = read_changed(tmp_path, CONFIG, {'text_config.hidden_act': 'gelu'})
    assert (model['text']['activation'], model['image']['activation']) == ('gelu', 'quick_gelu')


@pytest.mark.parametrize(
    ('file', 'key', 'value', 'wanted'),
    [
        (PIXELS, 'resample', 2, '3, None'),
        (PIXELS, 'size', {'height': SIZE, 'width': SIZE}, "{'shortest_edge': 16}, 16, None"),
        (PIXELS, 'crop_size', {'height': 20, 'width': SIZE}, "{'height': 16, 'width': 16}, 16, None"),
        (PIXELS, 'do_resize', False, 'True, None'),
        (PIXELS, 'do_center_crop', False, 'True, None'),
        (PIXELS, 'do_rescale', False, 'True, None'),
        (PIXELS, 'rescale_factor', 1 / 127.5, '0.00392156862745098, None'),
        (PIXELS, 'do_normalize', False, 'True, None'),
        (OPEN_CLIP, 'preprocess_cfg.resize_mode', 'squash', 'it must be shortest'),
        (OPEN_CLIP, 'preprocess_cfg.interpolation', 'bilinear', 'bicubic, random'),
        (OPEN_CLIP, 'preprocess_cfg.size', [20, 20], '16, [16, 16]'),
        (OPEN_CLIP, 'preprocess_cfg.mode', 'L', 'it must be RGB'),
    ],
)
def test_another_preprocessing_is_refused(tmp_path, file, key, value, wanted):
    needed = wanted if wanted.startswith('it must') else f'use one of {wanted}'
    message = f"{file} has '{key}' {value!r}; {needed}: give another model"
    with pytest.raises(UserError, match=re.escape(message) + '$'):
        read_changed(tmp_path, file, {key: value})


@pytest.mark.parametrize(
    ('file', 'key', 'value', 'message'),
    [
        (OPEN_CLIP, 'model_cfg', [], "has 'model_cfg' []; it must be a dict"),
        (OPEN_CLIP, 'license', 'mit', "has 'license' 'mit', which jitm does not know"),
        (OPEN_CLIP, 'model_cfg.quick_gelu', 'yes', "has 'model_cfg.quick_gelu' 'yes'; it must be True or False"),
        (OPEN_CLIP, 'model_cfg.embed_dim', None, "has 'model_cfg.embed_dim' None; it must be an integer"),
        (OPEN_CLIP, 'model_cfg.init_logit_bias', -10, "has 'model_cfg.init_logit_bias' -10; it must be None"),
        (OPEN_CLIP, 'model_cfg.vision_cfg.layers', None, "has 'vision_cfg.layers' None; it must be an integer or a"),
        (OPEN_CLIP, 'model_cfg.vision_cfg', {'layers': [1, 2]}, "has 'layers' [1, 2]; it must be four whole numbers"),
        (OPEN_CLIP, 'model_cfg.vision_cfg.head_width', 64, "has a 'head_width' above the 'width'"),
        (
            OPEN_CLIP,
            'model_cfg.vision_cfg.timm_model_name',
            'vit',
            "has 'vision_cfg.timm_model_name' 'vit'; it must be",
        ),
        (OPEN_CLIP, 'model_cfg.text_cfg.mlp_ratio', None, "has 'text_cfg.mlp_ratio' None; it must be a number"),
        (
            OPEN_CLIP,
            'model_cfg.text_cfg.hf_model_name',
            'xlm-roberta-base',
            "has 'text_cfg.hf_model_name' 'xlm-roberta",
        ),
        (OPEN_CLIP, 'preprocess_cfg.mean', [], "sets 'mean' to []: it must be three numbers"),
        (OPEN_CLIP, 'preprocess_cfg.std', [1, 1, 0], "sets 'std' to [1, 1, 0]: it must be three numbers above 0"),
        *(
            (
                CONFIG,
                'vision_config.image_size',
                value,
                f"has 'vision_config.image_size' {value!r}; it must be {needed}",
            )
            for value, needed in (
                *((value, 'an integer') for value in (None, [224], '224', 1.5, True)),
                (0, 'at least 1'),
            )
        ),
        (CONFIG, 'vision_config.hidden_act', 'relu', "has 'vision_config.hidden_act' 'relu'; use one of gelu, quick"),
        (CONFIG, 'vision_config.layer_norm_eps', 1e-6, "has 'vision_config.layer_norm_eps' 1e-06; it must be 1e-05"),
        (CONFIG, 'vision_config.rope_theta', 1e4, "has 'vision_config.rope_theta' 10000.0, which jitm does not know"),
        (CONFIG, 'text_config.is_decoder', True, "has 'text_config.is_decoder' True; it must be False"),
        (
            CONFIG,
            'text_config.eos_token_id',
            V - 3,
            f"has 'eos_token_id' {V - 3} of {V} tokens, but tokens that were add",
        ),
        (CONFIG, 'text_config', ['x'], "has 'text_config' ['x']; it must be a dict or None"),
        (CONFIG, 'quantization_config', {}, "has 'quantization_config' {}; it must be None"),
        (CONFIG, 'model_type', 'siglip', "has 'model_type' 'siglip'; it must be clip"),
    ],
)
def test_other_and_damaged_configs_are_refused(tmp_path, file, key, value, message):
    with pytest.raises(UserError, match=re.escape(f'{tmp_path / file} {message}')):
        read_changed(tmp_path, file, {key: value})


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
    monkeypatch.setattr('jitm.importers.tensors.HEAD_SIZE', WIDTH // HEADS)
    path = write_openai(tmp_path / 'openai', open_clip() | NUMBERS)
    got = load_clip(path)
    assert (got.model, got.vocabulary) == (model_of(), BPE.of(MERGES, LENGTH))
    halved = jax.tree.map(lambda x: x.astype(np.float16).astype(np.float32), variables())
    chex.assert_trees_all_equal(got.variables, halved)
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
    monkeypatch.setattr('jitm.importers.tensors.HEAD_SIZE', WIDTH // HEADS)
    tensors = open_clip() | NUMBERS
    change(tensors)
    with pytest.raises(UserError, match=message):
        load_clip(write_openai(tmp_path, tensors))


@pytest.mark.parametrize(
    ('tensors', 'config', 'message'),
    [
        (hugging_face, hugging_face_config(vision_config__image_size=30), "image.image_size' is 30, no multiple of"),
        (hugging_face, hugging_face_config(text_config__num_hidden_layers=3), 'lacks tensors'),
        (hugging_face, hugging_face_config(projection_dim=5), "tensor '(text|visual)_projection.weight' of shape"),
        (
            lambda: {name.replace('visual.', 'visual.trunk.'): tensor for name, tensor in open_clip().items()},
            open_clip_config(),
            r'has unknown tensors \(visual.trunk.',
        ),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, tensors, config, message):
    folder = write(tmp_path, tensors(), config, 'hugging_face' if tensors is hugging_face else 'open_clip')
    with pytest.raises(UserError, match=message):
        load_clip(folder)


NONE_OF_VERSION_4 = """
_name_or_path architectures bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id prefix problem_type
sep_token_id suppress_tokens task_specific_params tokenizer_class torch_dtype
"""
FALSE_OF_VERSION_4 = """
add_cross_attention do_sample early_stopping gradient_checkpointing is_decoder is_encoder_decoder output_attentions
output_hidden_states output_scores remove_invalid_values return_dict_in_generate tf_legacy_loss tie_encoder_decoder
torchscript use_bfloat16
"""
NUMBERS_OF_VERSION_4 = """
attention_dropout chunk_size_feed_forward diversity_penalty dropout length_penalty max_length min_length
no_repeat_ngram_size num_beam_groups num_beams num_return_sequences repetition_penalty temperature top_k top_p typical_p
"""
OF_VERSION_4 = {  # keys that transformers wrote into each tower
    **dict.fromkeys(NONE_OF_VERSION_4.split()),
    **dict.fromkeys(FALSE_OF_VERSION_4.split(), False),
    **dict.fromkeys(NUMBERS_OF_VERSION_4.split(), 1),
    'id2label': {'0': 'LABEL_0'},
    'pruned_heads': {},
    'return_dict': True,
    'pad_token_id': 1,
    'bos_token_id': 0,
    'eos_token_id': 2,
    'initializer_range': 0.02,
    'projection_dim': 512,
    'model_type': 'clip_text_model',
    'transformers_version': '4.16.0.dev0',
}


def test_configs_of_version_4_are_read(tmp_path):
    """In which the values of `*_config_dict` count, with their defaults, instead of those of `*_config`."""
    text, image = (OF_VERSION_4 | hugging_face_config()[f'{part}_config'] for part in ('text', 'vision'))
    changes = {'text_config': {**text, 'eos_token_id': 2}, 'vision_config': image, 'architectures': ['CLIPModel']}
    assert read_changed(tmp_path, CONFIG, changes)['text'] == model_of()['text']
    short = {key: value for key, value in text.items() if key not in OF_VERSION_4} | {'eos_token_id': 2}
    complete = {'text_config_dict': short, 'text_config': {'hidden_act': 'gelu', 'hidden_size': 512}}
    assert read_changed(tmp_path, CONFIG, complete)['text'] == model_of()['text']


@pytest.mark.parametrize(
    ('file', 'content', 'message'),
    [
        ('tokenizer_config.json', {'do_lower_case': False}, "has 'do_lower_case' False; it must be True"),
        ('tokenizer_config.json', {'model_max_length': 9}, "has 'model_max_length' 9, but the model reads 10 ids"),
        ('tokenizer_config.json', {'dropout': 0.1}, "has 'dropout' 0.1, which jitm does not know"),
        ('tokenizer_config.json', {'added_tokens_decoder': {'7': {'content': '<x>'}}}, "adds the token '<x>'"),
        ('tokenizer_config.json', {'extra_special_tokens': {'image': '<i>'}}, "adds the token '<i>'"),
        ('special_tokens_map.json', {'pad_token': {'content': '!'}}, "adds the token '!'"),
        ('special_tokens_map.json', {'additional_special_tokens': ['<x>']}, "adds the token '<x>'"),
        ('added_tokens.json', {'<x>': V}, "adds the token '<x>' to the pieces of the model, which is not read: give"),
        ('added_tokens.json', {'<|endoftext|>': V}, "adds the token '<|endoftext|>'"),
        ('vocab.json', {'!': 1}, "adds the token '!'"),
        ('tokenizer.json', {'model': {}}, 'is no tokenizer'),
    ],
)
def test_another_tokenizer_is_refused(tmp_path, file, content, message):
    folder = write(tmp_path / 'clip', hugging_face(), hugging_face_config())
    usual = {'bos_token': '<|startoftext|>', 'pad_token': '<|endoftext|>', 'errors': 'replace'}
    (tmp_path / 'clip' / 'special_tokens_map.json').write_text(json.dumps(usual | {'errors': []}))
    (tmp_path / 'clip' / 'tokenizer_config.json').write_text(json.dumps(usual | {'model_max_length': 77}))
    expected = load_clip(folder).vocabulary
    (tmp_path / 'clip' / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=re.escape(f'{folder}/{file} {message}')):
        load_clip(folder)
    assert load_clip(folder, f'{folder}/merges.txt').vocabulary == expected


def test_weights_in_several_files_are_read(tmp_path):
    folder = write(tmp_path, open_clip(), open_clip_config(), 'open_clip')
    (tmp_path / 'open_clip_model.safetensors').rename(tmp_path / 'part.safetensors')
    places = dict.fromkeys(open_clip(), 'part.safetensors')
    index = tmp_path / 'open_clip_model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': places}))
    for path in (folder, str(index)):
        chex.assert_trees_all_equal(load_clip(path).variables, variables())


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
    (folder / 'model.safetensors').rename(folder / 'model.fp16.safetensors')
    has = 'has no config.json with model.safetensors or open_clip_config.json with open_clip_model.safetensors, but '
    with pytest.raises(UserError, match=rf'{has}.*model\.fp16\.safetensors.*: give the folder of a published CLIP'):
        load_clip(str(folder))
    (folder / 'model.fp16.safetensors').rename(folder / 'model.safetensors')
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

    def mask(self):
        import torch

        return torch.tensor(np.arange(self.ids.shape[1]) < self.lengths[:, None]).long()

    def normalized(self):
        import torch

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
    import torch

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


@pytest.mark.needs('transformers', 'torch')
@pytest.mark.parametrize(('activation', 'end'), [('gelu', 2), ('quick_gelu', 49407)])
def test_agrees_with_transformers(tmp_path, activation, end):
    import torch
    import transformers

    vocab_size = V if end == 2 else 49408
    merges = MERGES if end == 2 else full_size_merges()
    changes = {'text_config__vocab_size': vocab_size, 'text_config__eos_token_id': end}
    config = hugging_face_config(vision_config__hidden_act=activation, text_config__hidden_act=activation, **changes)
    model = spread(transformers.CLIPModel(transformers.CLIPConfig(**config)))
    model.save_pretrained(tmp_path)
    write_merges(tmp_path, merges)
    example = Example.make(SIZE, vocab_size, LENGTH)
    with torch.no_grad():
        inputs = {'attention_mask': example.mask(), 'pixel_values': example.normalized()}
        out = model(input_ids=torch.tensor(example.ids), **inputs)
    got = example.encode(load_clip(str(tmp_path)))
    assert_agree(got, out.image_embeds, out.text_embeds, 100.0)
    assert_within('CLIP', got[2], out.logits_per_image)


RESNET = {'image_size': 64, 'layers': [1, 2, 1, 1], 'width': 8, 'head_width': 64, 'patch_size': None}


@pytest.mark.needs('open_clip', 'torch')
@pytest.mark.parametrize('kind', ['vit', 'custom', 'resnet'])
def test_agrees_with_open_clip(tmp_path, kind):
    import torch
    from open_clip import model as model_lib

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


@pytest.mark.needs('open_clip', 'torch')
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ['vit', 'resnet'])
def test_archives_of_torchscript_agree_with_open_clip(tmp_path, monkeypatch, kind):
    """A model as OpenAI publishes it: traced, with three numbers as buffers."""
    import torch
    from open_clip import model as model_lib

    monkeypatch.setattr('jitm.importers.tensors.HEAD_SIZE', WIDTH // HEADS)
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
