import functools
import json
import pathlib
import re

import chex
import jax
import numpy as np
import pytest

from jitm.data.text.pieces import BPE
from jitm.errors import UserError
from jitm.importers import clip_config, clip_weights, containers, processors, tokenizer_files
from jitm.importers.clip_weights import load_clip
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN
from jitm.models.make import make_model
from jitm.types import Images
from tests.configs.settings import load as load_setting
from tests.conftest import ROOT
from tests.parity.bounds import assert_within
from tests.support.clip import (
    HEADS,
    LENGTH,
    MERGES,
    PROCESSOR,
    SIZE,
    WIDTH,
    Example,
    V,
    assert_agree,
    hugging_face,
    hugging_face_config,
    model_of,
    open_clip,
    open_clip_config,
    variables,
    write,
    write_merges,
)
from tests.support.configs import changed
from tests.support.pages import commands
from tests.support.torch_pickles import modules, write_zip


def test_the_printed_download_has_the_files_that_are_read(tmp_path):
    (download,) = (command for command in commands(ROOT / 'docs' / 'search.md', tmp_path) if command[0] == 'hf')
    config, *_ = clip_weights.CONFIGS
    weights = containers.NAMES[1]
    checked = processors.PROCESSOR, tokenizer_files.CONFIG, tokenizer_files.SPECIAL, tokenizer_files.VOCABULARY
    assert {*download[3 : download.index('--local-dir')]} == {config, weights, clip_weights.MERGES[0], *checked}


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


CONFIG, PIXELS, OPEN_CLIP = 'config.json', 'preprocessor_config.json', 'open_clip_config.json'
CONFIGS = {CONFIG: hugging_face_config(), PIXELS: PROCESSOR, OPEN_CLIP: open_clip_config()}


def read_changed(folder, file, changes):
    """The model of configs of which one has other values of dotted keys."""
    for name, content in CONFIGS.items():
        content = changed(content, changes) if name == file else content
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


UNKNOWN = 'which jitm does not know'
REFUSED = [  # file, dotted key, value, what the message says after them
    (PIXELS, 'resample', 2, 'use one of 3, None: give another model'),
    (PIXELS, 'size', {'height': SIZE, 'width': SIZE}, "use one of {'shortest_edge': 16}, 16, None"),
    (PIXELS, 'crop_size', {'height': 20, 'width': SIZE}, "use one of {'height': 16, 'width': 16}, 16, None"),
    *((PIXELS, f'do_{name}', False, 'use one of True') for name in ('resize', 'center_crop', 'rescale', 'normalize')),
    (PIXELS, 'rescale_factor', 1 / 127.5, 'use one of 0.00392156862745098, None'),
    (OPEN_CLIP, 'preprocess_cfg.resize_mode', 'squash', 'it must be shortest'),
    (OPEN_CLIP, 'preprocess_cfg.interpolation', 'bilinear', 'use one of bicubic, random'),
    (OPEN_CLIP, 'preprocess_cfg.size', [20, 20], 'use one of 16, [16, 16]'),
    (OPEN_CLIP, 'preprocess_cfg.mode', 'L', 'it must be RGB'),
    (OPEN_CLIP, 'model_cfg', [], 'it must be a dict'),
    (OPEN_CLIP, 'license', 'mit', UNKNOWN),
    (OPEN_CLIP, 'model_cfg.quick_gelu', 'yes', 'it must be True or False'),
    (OPEN_CLIP, 'model_cfg.embed_dim', None, 'it must be an integer'),
    (OPEN_CLIP, 'model_cfg.init_logit_bias', -10, 'it must be None'),
    (OPEN_CLIP, 'model_cfg.vision_cfg.layers', None, 'it must be an integer or a'),
    (OPEN_CLIP, 'model_cfg.vision_cfg.timm_model_name', 'vit', 'it must be'),
    (OPEN_CLIP, 'model_cfg.text_cfg.mlp_ratio', None, 'it must be a number'),
    (OPEN_CLIP, 'model_cfg.text_cfg.hf_model_name', 'xlm-roberta-base', 'it must be None'),
    (CONFIG, 'vision_config.image_size', True, 'it must be an integer'),
    (CONFIG, 'vision_config.image_size', 0, 'it must be at least 1'),
    (CONFIG, 'vision_config.hidden_act', 'relu', 'use one of gelu, quick'),
    (CONFIG, 'vision_config.layer_norm_eps', 1e-6, 'it must be 1e-05'),
    (CONFIG, 'vision_config.rope_theta', 1e4, UNKNOWN),
    (CONFIG, 'text_config.is_decoder', True, 'it must be False'),
    (CONFIG, 'text_config', ['x'], 'it must be a dict or None'),
    (CONFIG, 'quantization_config', {}, 'it must be None'),
    (CONFIG, 'model_type', 'siglip', 'it must be clip'),
]


@pytest.mark.parametrize(('file', 'key', 'value', 'message'), REFUSED)
def test_other_values_are_refused(tmp_path, file, key, value, message):
    separator = ', ' if message == UNKNOWN else '; '
    sentence = f"{tmp_path / file} has '{key}' {value!r}{separator}{message}"
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_changed(tmp_path, file, {key: value})


@pytest.mark.parametrize(
    ('file', 'key', 'value', 'message'),
    [
        (OPEN_CLIP, 'model_cfg.vision_cfg.layers', [1, 2], "has 'model_cfg.vision_cfg.layers' [1, 2]; it must be an"),
        (OPEN_CLIP, 'model_cfg.vision_cfg.head_width', 64, "has a 'head_width' above the 'width'"),
        (OPEN_CLIP, 'preprocess_cfg.mean', [], "has 'preprocess_cfg.mean' []; it must be a tuple of 3"),
        (OPEN_CLIP, 'preprocess_cfg.std', [1, 1, 0], "has 'preprocess_cfg.std' [1, 1, 0]; it must be a tuple"),
        (CONFIG, 'text_config.eos_token_id', V - 3, f"has 'eos_token_id' {V - 3} of {V} tokens, but tokens that were"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path, file, key, value, message):
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
        for layer, count in enumerate(blocks, 1):
            shapes |= {f'visual.layer{layer}.{block}.conv1.weight': (64, 64, 1, 1) for block in range(count)}
    else:
        shapes |= {f'visual.transformer.resblocks.{n}.ln_1.weight': (width,) for n in range(blocks)}
        shapes['visual.proj'] = (image['conv1.weight'][0], embed_dim)
    tensors = {name: functools.partial(np.broadcast_to, 0, shape) for name, shape in shapes.items()}
    got = clip_config.read_openai(pathlib.Path('ViT.pt'), tensors)
    assert got == load_setting(f'clip:{size},softmax,f30k')['model']


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('input_resolution', 'has no open_clip_config.json and no config.json, which state the sizes'),
        ('text_projection', "has no tensor 'text_projection' with 2 axes: give weights of the system"),
    ],
)
def test_tensors_that_state_sizes_are_needed(tmp_path, name, message):
    tensors = open_clip() | NUMBERS
    del tensors[name]
    with pytest.raises(UserError, match=message):
        load_clip(write_openai(tmp_path, tensors))


def test_photos_are_whole_patches(tmp_path):
    config = hugging_face_config({'vision_config.image_size': 30})
    with pytest.raises(UserError, match=r"image.image_size' is 30, no multiple of"):
        load_clip(write(tmp_path, hugging_face(), config))


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
    (folder / 'config.json').write_text('{')
    with pytest.raises(UserError, match='cannot be read as JSON'):
        load_clip(str(folder), write_merges(tmp_path))
    (folder / 'config.json').unlink()
    (folder / 'model.safetensors').rename(folder / 'model.fp16.safetensors')
    absent = 'has no config.json with model.safetensors or open_clip_config.json with open_clip_model.safetensors, but '
    with pytest.raises(UserError, match=rf'{absent}.*model\.fp16\.safetensors.*: give the folder of a published CLIP'):
        load_clip(str(folder))


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


RESNET = {'image_size': 64, 'layers': [1, 2, 1, 1], 'width': 8, 'head_width': 64, 'patch_size': None}


@pytest.mark.needs('open_clip', 'torch')
@pytest.mark.parametrize('kind', ['vit', 'custom', 'resnet'])
def test_agrees_with_open_clip(tmp_path, kind):
    """Transformers is compared in tests/parity."""
    import torch
    from open_clip import model as model_lib

    config = open_clip_config(**{'vision_cfg': RESNET} if kind == 'resnet' else {'quick_gelu': False})
    kind_of_model = model_lib.CustomTextCLIP if kind == 'custom' else model_lib.CLIP
    model = spread(kind_of_model(**config['model_cfg']))
    config['model_cfg'] |= {'custom_text': True} if kind == 'custom' else {}
    tensors = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    folder = write(tmp_path, tensors, config, 'open_clip')
    example = Example.make(config['model_cfg']['vision_cfg']['image_size'], V, LENGTH)
    normalized = (example.pixels / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_DEVIATION)
    normalized = torch.tensor(normalized.transpose(0, 3, 1, 2).astype(np.float32))
    with torch.no_grad():
        images = model.encode_image(normalized)
        texts = model.encode_text(torch.tensor(example.ids))
        cells = cells_of(model.visual, normalized)
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
    outputs = []
    visual.layer4.register_forward_hook(lambda module, inputs, output: outputs.append(output.numpy()))
    visual(pixels)
    return outputs[0].reshape(*outputs[0].shape[:2], -1).transpose(0, 2, 1)
