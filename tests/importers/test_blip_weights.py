"""BLIP as transformers computes it, and the layout of the authors' files."""

import functools
import json
import re

import chex
import jax
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.importers.blip_weights import EPSILON, load_blip
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.parity.bounds import assert_within
from tests.support.blip import WORDS, V, blip_config, published_tensors, write_folder, write_published
from tests.support.torch_pickles import write_zip

IDS = np.array([[5, 7, 9, 11, 2, 0, 0], [5, 8, 6, 4, 3, 12, 2]], np.int32)
TEXTS = Texts(IDS, np.count_nonzero(IDS, axis=1).astype(np.int32))


def outputs(published):
    """The cosines, the states of images, and the logits of pairs (0, 0) and (1, 1)."""
    model = make_model(published.model, V)
    pixels = np.sin(0.05 * np.arange(2 * 3 * 32 * 32)).astype(np.float32).reshape(2, 3, 32, 32)
    images = Images(pixels=pixels.transpose(0, 2, 3, 1))

    def compare(matcher):
        encoded = matcher.encode_image(images), matcher.encode_text(TEXTS)
        return matcher.similarity(*encoded), matcher.image.states(images)

    def match(matcher):
        encoded = matcher.encode_image(images), matcher.encode_text(TEXTS)
        return matcher.read_pairs(*encoded, ('itm', 'rank'))

    @jax.jit
    def run(variables):
        return model.apply(variables, method=compare), model.reranker.apply(variables, method=match)

    (cosines, states), heads = run(published.variables)
    np.testing.assert_array_equal(heads['rank'], heads['itm'][:, 1])
    return cosines, states, heads['itm']


@pytest.mark.needs('transformers', 'torch')
@pytest.mark.parametrize('epsilon', [1e-5, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_agrees_with_transformers(tmp_path, epsilon):
    """Cosines and logits; transformers gets the captions that start with [ENC] to match, and their own to compare."""
    import torch
    import transformers

    config = blip_config({'vision_config.layer_norm_eps': epsilon, 'text_config.encoder_hidden_size': 24})
    theirs = transformers.BlipForImageTextRetrieval(transformers.BlipConfig(**config))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():  # so that every part of the formulas shows
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.eval().save_pretrained(tmp_path)
    written = json.loads((tmp_path / 'config.json').read_text())
    write_folder(tmp_path, config)
    (tmp_path / 'config.json').write_text(json.dumps(written))
    published = load_blip(str(tmp_path))
    assert published.model['image']['epsilon'] == epsilon

    pixels = torch.tensor(np.sin(0.05 * np.arange(2 * 3 * 32 * 32)).reshape(2, 3, 32, 32)).float()
    matched = IDS.copy()
    matched[:, 0] = V - 1

    def call(ids, with_head):
        mask = torch.tensor(ids != 0)
        with torch.no_grad():
            return theirs(torch.tensor(ids).long(), pixels, use_itm_head=with_head, attention_mask=mask.long())

    out = call(matched, True)
    expected = call(IDS, False).itm_score, out.last_hidden_state, out.itm_score
    for array, tensor in zip(outputs(published), expected, strict=True):
        assert_within('BLIP', array, tensor)


AUTHORS = (  # Hugging Face's names -> the authors'
    (r'^vision_model\.embeddings\.class_embedding', 'visual_encoder.cls_token'),
    (r'^vision_model\.embeddings\.position_embedding', 'visual_encoder.pos_embed'),
    (r'^vision_model\.embeddings\.patch_embedding', 'visual_encoder.patch_embed.proj'),
    (r'^vision_model\.post_layernorm', 'visual_encoder.norm'),
    (r'^vision_model\.encoder\.layers', 'visual_encoder.blocks'),
    (r'\.self_attn\.qkv', '.attn.qkv'),
    (r'\.self_attn\.projection', '.attn.proj'),
    (r'\.layer_norm', '.norm'),
)


def write_pth(path, **others):
    """Writes a file of the authors, with the moving averages and queues of a fine-tuned model."""
    tensors = {}
    for name, values in published_tensors().items():
        name = functools.reduce(lambda name, rule: re.sub(*rule, name), AUTHORS, name)
        average = re.sub(r'^(visual_encoder|text_encoder|vision_proj|text_proj)\.', r'\1_m.', name)
        tensors |= {average: 0 * values, name: values}
    tensors |= {f'{side}_queue': np.zeros((8, 5), np.float32) for side in ('image', 'text')}
    tensors |= {'ptr_queue': np.zeros(1, np.int64), 'idx_queue': np.zeros((1, 5), np.int64)}
    tensors |= {'temp': np.array(0.05, np.float32), 'text_encoder.embeddings.position_ids': np.arange(12)[None]}
    write_zip(path, {'model': tensors | others, 'epoch': 5})


@pytest.mark.slow
def test_files_of_the_authors(tmp_path):
    """Sizes are those of the tensors; only heads of 64 numbers were released."""
    of_folder = load_blip(write_published(tmp_path / 'folder', changes={'vision_config.layer_norm_eps': 1e-6}))
    write_pth(tmp_path / 'model_base_retrieval_coco.pth')
    vocabulary = str(tmp_path / 'folder' / 'vocab.txt')
    published = load_blip(str(tmp_path / 'model_base_retrieval_coco.pth'), vocabulary)
    ours, theirs = (dict(model.variables['params']) for model in (published, of_folder))
    np.testing.assert_allclose(np.exp(-ours.pop('logit_scale')), 0.05, rtol=1e-6)
    np.testing.assert_allclose(np.exp(-theirs.pop('logit_scale')), 0.07, rtol=1e-6)
    assert jax.tree.map(lambda x: x.size, ours) == jax.tree.map(lambda x: x.size, theirs)
    chex.assert_trees_all_equal(jax.tree.map(np.ravel, ours), jax.tree.map(np.ravel, theirs))
    for tower in ('image', 'text'):
        pixels = {key: of_folder.model[tower][key] for key in ('mean', 'deviation') if tower == 'image'}
        assert published.model[tower] | pixels == of_folder.model[tower] | {'num_heads': 1}
    assert published.model['image']['epsilon'] == EPSILON
    assert published.resizing == {'short_side': 0, 'interpolation': 'bicubic'}
    assert published.data['pixels'] == [0, 32, 32, 3]
    with pytest.raises(UserError, match=r'has no vocab.txt or tokenizer.json: add that of its BERT, or give --vocab'):
        load_blip(str(tmp_path / 'model_base_retrieval_coco.pth'))
    write_pth(tmp_path / 'other.pth', **{'text_decoder.bert.pooler.dense.bias': np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=r'has unknown tensors \(text_decoder.bert.pooler.dense.bias\)'):
        load_blip(str(tmp_path / 'other.pth'), vocabulary)


def test_pieces_of_the_bert_get_those_of_blip(tmp_path):
    path = write_published(tmp_path)
    write_folder(tmp_path, blip_config(), WORDS[:-2])
    assert load_blip(path).vocabulary.words == WORDS
    write_folder(tmp_path, blip_config(), WORDS[:-3])
    with pytest.raises(UserError, match=f'has {V - 1} pieces, but .* has {V}: give its own tokenizer'):
        load_blip(path)


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'model_type': 'blip-2'}, "has 'model_type' 'blip-2'; it must be blip"),
        ({'text_config.layer_norm_eps': 1e-5}, "has 'text_config.layer_norm_eps' 1e-05; it must be 1e-12"),
        ({'vision_config.layer_norm_eps': '1e-5'}, "has 'vision_config.layer_norm_eps' '1e-5'; it must be a number"),
    ],
)
def test_other_models_are_refused(tmp_path, config, message):
    path = write_published(tmp_path)
    write_folder(tmp_path, blip_config(config))
    with pytest.raises(UserError, match=re.escape(message)):
        load_blip(path)


def test_photos_that_are_prepared_otherwise_are_refused(tmp_path):
    path = write_published(tmp_path)
    (tmp_path / 'preprocessor_config.json').write_text('{"do_center_crop": true}')
    with pytest.raises(UserError, match=r"has 'do_center_crop' True; use one of False, None: give another model"):
        load_blip(path)
