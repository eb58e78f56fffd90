"""Long-CLIP's files, and a released CLIP that is stretched to longer captions."""

import copy

import chex
import numpy as np
import pytest

import jitm
from jitm.commands.cli import main
from jitm.data.text.pieces import BPE
from jitm.errors import UserError
from jitm.importers.clip_weights import load_clip, stretch
from jitm.layers.clip_text import stretch_positions
from jitm.training.setup import set_up
from tests.importers import test_clip_weights as published
from tests.importers.torch_pickles import modules, write_zip

LENGTH, FACTOR = 24, 4
LONG = FACTOR * LENGTH - (FACTOR - 1) * 20  # 36


def test_files_of_long_clip_need_no_config(tmp_path, monkeypatch):
    """A state_dict of single precision with two tensors of positions, of which each is read in part."""
    monkeypatch.setattr('jitm.importers.tensors.HEAD_SIZE', published.WIDTH // published.HEADS)
    variables = published.variables(length=LONG)
    tensors = {name: np.array(tensor) for name, tensor in published.export(variables, published.OPENAI).items()}
    positions = tensors['positional_embedding']
    tensors['positional_embedding'] = np.where(np.arange(LONG)[:, None] < 20, positions, np.nan)
    tensors['positional_embedding_res'] = np.where(np.arange(LONG)[:, None] < 20, np.nan, positions)
    published.write_merges(tmp_path)
    got = load_clip(write_zip(tmp_path / 'longclip-B.pt', modules(tensors, 'FloatStorage'), root='archive'))
    chex.assert_trees_all_equal(got.variables, variables)
    assert (got.model, got.vocabulary) == (published.model_of(length=LONG), BPE.of(published.MERGES, LONG))


@pytest.mark.needs('transformers', 'torch')
def test_a_stretched_clip_agrees_with_transformers(tmp_path):
    import torch
    import transformers

    folder = published.write_published(tmp_path / 'clip', published.SIZE, LENGTH)
    got, before = stretch(load_clip(folder), FACTOR), load_clip(folder)
    assert (got.model['text']['max_length'], len(got.vocabulary.encode('the ' * 99))) == (LONG, LONG)
    assert before.model['text']['max_length'] == LENGTH

    model = transformers.CLIPModel.from_pretrained(folder).eval()
    embeddings = model.text_model.embeddings
    with torch.no_grad():
        longer = stretch_positions(embeddings.position_embedding.weight.numpy(), FACTOR)
        embeddings.position_embedding = torch.nn.Embedding.from_pretrained(torch.tensor(np.array(longer)))
        embeddings.position_ids = torch.arange(LONG)[None]
        example = published.Example.make(published.SIZE, published.V, LONG)
        inputs = {'attention_mask': example.mask(), 'pixel_values': example.normalized()}
        out = model(input_ids=torch.tensor(example.ids), **inputs)
    scale = float(np.exp(before.variables['params']['logit_scale']))
    published.assert_agree(example.encode(got), out.image_embeds, out.text_embeds, scale)


@pytest.mark.slow
def test_a_stretched_run_is_evaluated_exported_and_fine_tuned(tmp_path, capsys):
    folder = published.write_published(tmp_path / 'clip', 64, LENGTH)
    data = [f'--config.data.{name}_images={count}' for name, count in (('train', 16), ('dev', 4), ('test', 4))]
    arguments = ['--from', 'clip', folder, '--config', 'clip:scenes', *data]
    assert main(['convert', *arguments, '--stretch', str(FACTOR), '--out', str(tmp_path / 'long')]) == 0
    run = jitm.load(tmp_path / 'long')
    captions = ['the ' * words for words in (3, 30, LONG, 99)]
    vectors = run.encode_text(captions)
    same = np.isclose(vectors @ vectors.T, 1, atol=1e-6)
    assert same.tolist() == [[a == b or {a, b} == {2, 3} for a in range(4)] for b in range(4)], 'cut at 36 ids'

    assert main(['convert', '--to', 'clip_transformers', str(tmp_path / 'long'), '--out', str(tmp_path / 'hub')]) == 0
    assert load_clip(str(tmp_path / 'hub')).model['text'] == run.run.config['model']['text']
    config = run.run.config | {'members': {'target': {'rule': 'gradient', 'init_from': str(tmp_path / 'long')}}}
    state = set_up(config).initial_state()
    chex.assert_trees_all_equal(state.members['target'].params, run.run.variables['params'])
    short = copy.deepcopy(config)
    short['model']['text']['max_length'] = LENGTH
    with pytest.raises(UserError, match=r'has another model \(model.text.max_length: 36 -> 24\)'):
        set_up(short)

    capsys.readouterr()
    assert main(['convert', *arguments, '--stretch', '0', '--out', str(tmp_path / 'new')]) == 2
    tiny = published.write_published(tmp_path / 'tiny', 64, 16)
    assert main(['convert', '--from', 'clip', tiny, '--stretch', '4', '--out', str(tmp_path / 'new')]) == 2
    assert main(['convert', '--from', 'scan', 'x', '--stretch', '4', '--out', str(tmp_path / 'new')]) == 2
    errors = capsys.readouterr().err
    assert 'the text encoder has 16 positions: stretch one with at least 22' in errors
    assert '--stretch is not read without --from clip' in errors
