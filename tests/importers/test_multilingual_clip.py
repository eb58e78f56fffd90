"""open_clip's CLIP whose text encoder is an XLM-R."""

import functools
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import jitm
from jitm.commands.cli import main
from jitm.errors import UserError
from jitm.importers.clip_weights import OPEN_CLIP_XLM_R, load_clip, stretch, xlm_r_size
from jitm.importers.tensors import export
from tests.importers import test_clip_weights as published
from tests.importers.text_folders import write_tokenizer

WORDS = ('ein', 'hund', 'un', 'chien')
V, LENGTH, HIDDEN, HEADS = len(WORDS) + 5, 10, 24, 2
SIZE = {
    'name': 'transformer.BERTSize',
    'hidden': HIDDEN,
    'layers': 2,
    'heads': HEADS,
    'mlp_dim': 32,
    'max_positions': 16,
    'token_types': 1,
    'deviation': 0.02,
    'first_position': 2,
    'activation': 'gelu',
    'epsilon': 1e-5,
    'relative_positions': False,
}
TEXT = {'hf_model_name': 'xlm-roberta-base', 'hf_tokenizer_name': 'xlm-roberta-base', 'context_length': LENGTH}


@pytest.fixture(autouse=True)
def head_size(monkeypatch):
    monkeypatch.setattr('jitm.importers.tensors.HEAD_SIZE', HIDDEN // HEADS)


def model_of(size=published.SIZE):
    """The config's `model`."""
    model = published.model_of(size=size)
    model['image']['activation'] = 'gelu'
    text = {'name': 'clip_text.PooledBERT', 'dtype': 'float32', 'max_length': LENGTH, 'size': SIZE}
    return model | {'text': text}


def write(folder, tensors, size=published.SIZE, **changes):
    """Writes a folder of open_clip."""
    folder.mkdir(exist_ok=True)
    config = published.open_clip_config(quick_gelu=False, text_cfg=TEXT | changes)
    config['model_cfg']['vision_cfg']['image_size'] = size
    (folder / 'open_clip_config.json').write_text(json.dumps(config))
    save_file(tensors, folder / 'open_clip_model.safetensors')
    assert write_tokenizer(folder, WORDS) == V
    return str(folder)


def random_tensors(size=published.SIZE):
    tensors = export(published.draw(model_of(size), V), OPEN_CLIP_XLM_R)
    named = {name if name.startswith(('visual', 'logit')) else f'text.{name}': tensors[name] for name in tensors}
    return {name: np.array(tensor, order='C') for name, tensor in named.items()}


@pytest.mark.needs('open_clip', 'transformers', 'torch')
def test_agrees_with_open_clip(tmp_path):
    import torch
    import transformers
    from open_clip import model as model_lib

    sizes = {'hidden_size': HIDDEN, 'num_hidden_layers': 2, 'num_attention_heads': HEADS, 'intermediate_size': 32}
    sizes |= {'max_position_embeddings': 16, 'type_vocab_size': 1, 'layer_norm_eps': 1e-5, 'vocab_size': V}
    transformers.XLMRobertaConfig(**sizes).save_pretrained(tmp_path / 'xlm-roberta-base')
    text = TEXT | {'hf_model_name': str(tmp_path / 'xlm-roberta-base'), 'hf_model_pretrained': False}
    text |= {'hf_pooler_type': 'mean_pooler', 'hf_proj_type': 'mlp'}
    config = published.open_clip_config(quick_gelu=False, text_cfg=text)['model_cfg']
    model = published.spread(model_lib.CustomTextCLIP(**config))
    tensors = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    assert tensors.keys() - {'text.transformer.embeddings.position_ids'} == random_tensors().keys()
    got = load_clip(write(tmp_path / 'clip', tensors, pooler_type='mean_pooler', proj='mlp'))
    assert got.model == model_of()

    example = published.Example.make(published.SIZE, V, LENGTH)
    padded = np.where(np.arange(LENGTH) < example.lengths[:, None], example.ids, 1)
    with torch.no_grad():
        images, texts = model.encode_image(example.normalized()), model.encode_text(torch.tensor(padded))
    published.assert_agree(example.encode(got), images, texts, 100.0)


def test_a_converted_run_is_evaluated_in_any_language(tmp_path):
    folder = write(tmp_path / 'clip', random_tensors(64), 64)
    data = [f'--config.data.{name}_images={count}' for name, count in (('train', 16), ('dev', 4), ('test', 4))]
    arguments = ['--from', 'clip', folder, '--config', 'clip:scenes', *data]
    assert main(['convert', *arguments, '--out', str(tmp_path / 'run')]) == 0
    run = jitm.load(tmp_path / 'run')
    captions = ['ein hund', 'un chien ' * LENGTH, 'un chien ' * 99]
    assert [len(run.run.vocabulary.encode(caption)) for caption in captions] == [4, LENGTH, LENGTH]
    vectors = run.encode_text(captions)
    np.testing.assert_allclose(vectors[1], vectors[2], atol=1e-6)
    assert abs(vectors[0] @ vectors[1]) < 0.999
    assert main(['eval', '--workdir', str(tmp_path / 'run'), '--split', 'test']) == 0


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'hf_pooler_type': 'cls_pooler'}, "text encoder 'xlm-roberta-base' with 'cls_pooler' and 'mlp': give a CLIP"),
        ({'hf_proj_type': 'linear'}, "with 'mean_pooler' and 'linear': give a CLIP"),
        ({'hf_model_name': 'google/mt5-base'}, "the text encoder 'mt5-base' with"),
        ({'layers': 3}, "sets 'layers' to 3, which this CLIP does not have"),
    ],
)
def test_other_text_encoders_are_refused(tmp_path, changes, message):
    folder = write(tmp_path / 'clip', random_tensors(), **changes)
    with pytest.raises(UserError, match=message):
        load_clip(folder)


def test_its_positions_are_not_stretched(tmp_path):
    folder = write(tmp_path / 'clip', random_tensors())
    with pytest.raises(UserError, match=r"the text encoder 'clip_text\.PooledBERT' has no positions to stretch"):
        stretch(load_clip(folder), 4)
    (tmp_path / 'clip' / 'tokenizer.json').unlink()
    with pytest.raises(UserError, match=r'clip has no .*tokenizer\.json'):
        load_clip(folder)


@pytest.mark.parametrize(('hidden', 'layers', 'heads'), [(768, 12, 12), (1024, 24, 16)])
def test_published_sizes_are_read_from_the_tensors(monkeypatch, hidden, layers, heads):
    monkeypatch.undo()
    shapes = {'embeddings.position_embeddings.weight': (514, hidden)}
    shapes |= {f'encoder.layer.{n}.intermediate.dense.weight': (4 * hidden, hidden) for n in range(layers)}
    tensors = {f'transformer.{name}': functools.partial(np.broadcast_to, 0, shapes[name]) for name in shapes}
    size = xlm_r_size('x', tensors)
    assert [size[key] for key in ('hidden', 'layers', 'heads', 'mlp_dim')] == [hidden, layers, heads, 4 * hidden]
    assert (size['max_positions'], size['token_types'], size['epsilon']) == (514, 1, 1e-5)
