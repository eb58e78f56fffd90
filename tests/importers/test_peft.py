"""Adapters in peft's format, against its formulas and against peft."""

import json

import jax
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save_file

from jitm.errors import UserError
from jitm.importers.clip_weights import load_clip
from jitm.importers.containers import ADAPTER
from jitm.importers.peft import NAMES, apply_adapters, export_adapters, module_name, names_of
from jitm.layers.lora import LoRA, merge
from tests.importers import test_clip_weights as published
from tests.importers.test_clip_export import write_files

CLIP = {'name': 'clip.CLIP'}
MPNET = {'name': 'transformer.BERTSize', 'token_types': 0, 'first_position': 2, 'relative_positions': True}
ALL = ('query', 'key', 'value', 'out', 'mlp_in', 'mlp_out')
PARTS = ['self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.out_proj', 'mlp.fc1', 'mlp.fc2']


def adapted(params, **options):
    """Parameters with random adapters."""
    flat = traverse_util.flatten_dict(LoRA(**options).add(jax.random.key(0), params))
    rng = np.random.default_rng(3)
    drawn = {
        path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in flat.items() if path[-1] == 'lora_b'
    }
    return traverse_util.unflatten_dict(flat | drawn)


@pytest.fixture(scope='module')
def params():
    return jax.tree.map(np.asarray, published.variables()['params'])


def test_names_are_those_of_transformers(params):
    files = export_adapters(CLIP, adapted(params, rank=3, alpha=6.0, modules=ALL))
    tensors, config = load_tensors(files['adapter_model.safetensors']), json.loads(files[ADAPTER])
    towers = [f'{tower}_model.encoder.layers.{n}' for tower in ('text', 'vision') for n in range(2)]
    modules = {f'{tower}.{part}' for tower in towers for part in PARTS}
    assert {*config['target_modules']} == modules
    assert tensors.keys() == {f'base_model.model.{name}.lora_{part}.weight' for name in modules for part in 'AB'}
    assert (config['peft_type'], config['r'], config['lora_alpha']) == ('LORA', 3, 6.0)
    query = params['text']['encoder']['block_0']['attention']['query']['kernel']
    name = 'base_model.model.text_model.encoder.layers.0.self_attn.q_proj'
    assert tensors[f'{name}.lora_A.weight'].shape == (3, query.shape[0])
    assert tensors[f'{name}.lora_B.weight'].shape == (query[0].size, 3)
    assert module_name(NAMES['clip.SigLIP'], ('image', 'encoder', 'block_3', 'mlp_in')).endswith('layers.3.mlp.fc1')


@pytest.mark.parametrize(
    ('size', 'name'),
    [
        ('base', 'encoder.layer.3.attention.self.query'),
        ({'token_types': 1, 'first_position': 2}, 'encoder.layer.3.attention.self.query'),
        ({'token_types': 0}, 'transformer.layer.3.attention.q_lin'),
        (MPNET, 'encoder.layer.3.attention.attn.q'),
    ],
)
def test_names_of_text_encoders_are_those_of_their_kind(size, name):
    query, text = ('bert', 'encoder', 'block_3', 'attention', 'query'), {'name': 'text.BERTEncoder', 'size': size}
    assert module_name(names_of({'name': 'vse.VSE', 'text': text}), ('text', *query)) == name
    assert module_name(names_of({'name': 'uniter.UNITER', 'size': size}), query) == name
    assert module_name(names_of({'name': 'blip.BLIP', 'text': {'name': 'blip.MultimodalBERT'}}), query) is None


def test_what_is_written_is_read(params, tmp_path):
    trained = adapted(params, rank=3, alpha=6.0, modules=ALL)
    folder = write_files(tmp_path / 'adapters', export_adapters(CLIP, trained))
    read = apply_adapters(folder, CLIP, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), read, merge(trained))


@pytest.mark.parametrize(
    ('changes', 'scale'),
    [
        ({}, 2.0),
        ({'use_rslora': True}, 6 / 3**0.5),
        ({'alpha_pattern': {'q_proj': 12}}, 4.0),
        ({'alpha_pattern': {r'text_model.*\.k_proj': 12}}, 2.0),
    ],
)
def test_scales_are_those_of_peft(params, tmp_path, changes, scale):
    trained = adapted(params, rank=3, alpha=6.0, modules=('query',))
    files = export_adapters(CLIP, trained)
    files[ADAPTER] = json.dumps(json.loads(files[ADAPTER]) | changes).encode()
    read = apply_adapters(write_files(tmp_path / 'adapters', files), CLIP, params)
    query, base, got = (tree['image']['encoder']['block_1']['attention']['query'] for tree in (trained, params, read))
    want = scale * np.float64(query['lora_a']) @ np.float64(query['lora_b'])
    np.testing.assert_allclose((got['kernel'] - base['kernel']).reshape(want.shape), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'use_dora': True}, "adapter_config.json has 'use_dora' True; it must be False: merge"),
        ({'bias': 'all'}, "has 'bias' 'all'; it must be none"),
        ({'peft_type': 'LOHA'}, "has 'peft_type' 'LOHA'"),
        ({'modules_to_save': ['visual_projection']}, "has 'modules_to_save'"),
        (
            {'init_lora_weights': 'pissa'},
            "has 'init_lora_weights' 'pissa'; use one of True, False, None, gaussian, orth",
        ),
        ({'init_lora_weights': 'olora'}, "has 'init_lora_weights' 'olora'"),
        ({'alora_invocation_tokens': [3]}, r"has 'alora_invocation_tokens' \[3\]; it must be None"),
        ({'new_kind': 1}, "has 'new_kind' 1, which jitm does not know: merge"),
    ],
)
def test_other_kinds_of_adapters_are_refused(params, tmp_path, changes, message):
    files = export_adapters(CLIP, adapted(params, rank=1))
    files[ADAPTER] = json.dumps(json.loads(files[ADAPTER]) | changes).encode()
    with pytest.raises(UserError, match=message):
        apply_adapters(write_files(tmp_path / 'adapters', files), CLIP, params)


def test_adapters_of_another_model_are_refused(params, tmp_path):
    with pytest.raises(UserError, match='has no adapter_config'):
        apply_adapters(str(tmp_path), CLIP, params)
    with pytest.raises(UserError, match='the run has no adapters: train it with'):
        export_adapters(CLIP, params)
    files = export_adapters(CLIP, adapted(params, rank=2))
    folder = write_files(tmp_path / 'adapters', files)
    tensors = load_tensors(files['adapter_model.safetensors'])
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name][:, :-1].copy()}, f'{folder}/adapter_model.safetensors')
    with pytest.raises(UserError, match='has adapters of another shape than'):
        apply_adapters(folder, CLIP, params)
    more = {'base_model.model.text_model.encoder.layers.7.mlp.fc1.lora_A.weight': tensors[name]}
    save_file(tensors | more, f'{folder}/adapter_model.safetensors')
    with pytest.raises(UserError, match=r'has unknown tensors \(base_model.model.text_model.encoder.layers.7'):
        apply_adapters(folder, CLIP, params)


def test_adapters_of_the_pooler_of_a_bert_have_no_effect(params, tmp_path):
    """As with target_modules='all-linear'."""
    files = export_adapters(CLIP, adapted(params, rank=2))
    folder = write_files(tmp_path / 'adapters', files)
    merged = apply_adapters(folder, CLIP, params)
    tensors = load_tensors(files['adapter_model.safetensors'])
    pooler = {f'base_model.model.pooler.dense.lora_{part}.weight': np.ones((2, 2), np.float32) for part in 'AB'}
    save_file(tensors | pooler, f'{folder}/adapter_model.safetensors')
    jax.tree.map(np.testing.assert_array_equal, apply_adapters(folder, CLIP, params), merged)


@pytest.mark.needs('torch', 'peft', 'transformers')
@pytest.mark.filterwarnings('ignore:.*is deprecated:FutureWarning')  # peft asks transformers
def test_agrees_with_peft_in_both_directions(tmp_path):
    import peft
    import torch
    import transformers

    folder = published.write(tmp_path / 'base', published.hugging_face(), published.hugging_face_config())
    model = load_clip(folder)
    example = published.Example.make(published.SIZE, published.V, published.LENGTH)
    inputs = {'input_ids': torch.tensor(example.ids), 'pixel_values': example.normalized()}

    def assert_same(theirs, params):
        with torch.no_grad():
            out = theirs(**inputs, attention_mask=example.mask())
        got = example.encode(model._replace(variables={'params': params, 'batch_stats': {}}))
        published.assert_agree(got, out.image_embeds, out.text_embeds, float(theirs.logit_scale.exp()))

    # Theirs, read by jitm.
    options = {'r': 3, 'lora_alpha': 5, 'target_modules': [part.rpartition('.')[2] for part in PARTS]}
    torch.manual_seed(0)
    theirs = peft.get_peft_model(transformers.CLIPModel.from_pretrained(folder), peft.LoraConfig(**options)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if 'lora_B' in name:
                parameter.normal_()
    theirs.save_pretrained(tmp_path / 'theirs')
    assert_same(theirs, apply_adapters(str(tmp_path / 'theirs'), CLIP, model.variables['params']))
    # Ours, read by peft.
    trained = adapted(model.variables['params'], rank=2, alpha=3.0)
    ours = write_files(tmp_path / 'ours', export_adapters(CLIP, trained))
    read = peft.PeftModel.from_pretrained(transformers.CLIPModel.from_pretrained(folder), ours).eval()
    assert_same(read, merge(trained))
