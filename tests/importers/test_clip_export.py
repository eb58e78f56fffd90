"""Our CLIP under Hugging Face's names, against transformers."""

import chex
import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

from jitm.data.text.pieces import BPE
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.importers.clip_weights import export_clip, load_clip
from tests.support import clip as published


def write_files(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def export(model):
    return export_clip(model.model, model.variables, model.vocabulary)


@pytest.fixture(scope='module')
def vit(tmp_path_factory):
    gelu = {'text_config.hidden_act': 'gelu', 'vision_config.hidden_act': 'gelu'}
    folder = tmp_path_factory.mktemp('published') / 'vit'
    written = published.write(folder, published.hugging_face(), published.hugging_face_config(gelu))
    (folder / 'preprocessor_config.json').write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.5, 1]}')
    return load_clip(written)


def test_names_and_bits_survive_both_directions(tmp_path, vit):
    files = export(vit)
    again = load_clip(write_files(tmp_path / 'exported', files))
    chex.assert_trees_all_equal(again.variables, vit.variables)
    assert (again.model, again.vocabulary) == (vit.model, vit.vocabulary)
    chex.assert_trees_all_equal(load_tensors(files['model.safetensors']), published.hugging_face())


@pytest.mark.parametrize(
    ('change', 'vocabulary', 'message'),
    [
        ({'name': 'scan.SCAN'}, None, "the run has the model 'scan.SCAN', which is not CLIP"),
        ({}, Vocabulary(('<pad>', '<start>', '<end>', '<unk>')), 'the run reads no byte pairs'),
        ({'image': {'name': 'clip_resnet.ModifiedResNet'}}, None, 'convert it --to safetensors'),
        ({'text': {'activation': 'gelu_tanh'}}, None, "the activation 'gelu_tanh'; CLIP has gelu, quick_gelu"),
    ],
)
def test_what_it_has_not_is_not_written(vit, change, vocabulary, message):
    model = dict(vit.model)
    for key, value in change.items():
        model[key] = model[key] | value if isinstance(value, dict) else value
    with pytest.raises(UserError, match=message):
        export_clip(model, vit.variables, vocabulary or vit.vocabulary)


@pytest.mark.needs('transformers', 'torch')
def test_transformers_reads_the_folder(tmp_path, vit):
    import torch
    import transformers

    words = BPE.of(published.full_size_merges())  # which the tokenizer of transformers needs
    params = vit.variables['params']
    embedding = np.random.default_rng(0).normal(size=(len(words), published.WIDTH)).astype(np.float32)
    text = params['text'] | {'words': {'embedding': embedding}}
    variables = {'params': params | {'text': text, 'logit_scale': np.log(np.float32(100))}, 'batch_stats': {}}
    model = vit._replace(variables=variables, vocabulary=words)
    folder = write_files(tmp_path / 'exported', export(model))
    read, info = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    example = published.Example.make(published.SIZE, len(words), published.LENGTH)
    photos = torch.tensor(example.pixels.transpose(0, 3, 1, 2))
    mask = torch.tensor(np.arange(published.LENGTH) < example.lengths[:, None])
    pixels = transformers.CLIPImageProcessor.from_pretrained(folder)(photos, return_tensors='pt')['pixel_values']
    with torch.no_grad():
        out = read(input_ids=torch.tensor(example.ids), attention_mask=mask.long(), pixel_values=pixels)
    published.assert_agree(example.encode(model), out.image_embeds, out.text_embeds, 100.0)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    caption = 'A dog, on the GRASS!'
    assert tokenizer(caption)['input_ids'] == words.encode(caption).tolist()
