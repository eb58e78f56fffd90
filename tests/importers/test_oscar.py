import re

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.oscar import load_oscar
from jitm.importers.pretrained import replace
from jitm.models.oscar import OSCAR
from jitm.types import Images, Texts
from tests.importers.test_bert import saved
from tests.importers.test_pretrained import load_params

V, F, H, FFN, LAYERS, HEADS, POSITIONS = 11, 10, 128, 512, 2, 2, 512
MODEL = OSCAR(V, 'tiny', dropout=0.1, dtype='float32', image_norm=True)


def make_inputs():
    rng = np.random.default_rng(0)
    regions, locations = (rng.random((3, 4, size)).astype(np.float32) for size in (F, 7))
    texts = [Texts(rng.integers(1, V, (3, 5)).astype(np.int32), np.array(n, np.int32)) for n in ([2, 1, 3], [5, 3, 4])]
    return Images(regions, np.array([4, 2, 3], np.int32), locations=locations, tags=texts[0]), texts[1]


PARAMS = jax.eval_shape(MODEL.init, jax.random.key(0), *make_inputs())['params']


def linear(name, outputs, inputs):
    return {f'{name}.weight': (outputs, inputs), f'{name}.bias': (outputs,)}


def norm(name):
    return {f'{name}.weight': (H,), f'{name}.bias': (H,)}


def shapes():
    """Names and shapes of a fine-tuned checkpoint."""
    embeddings = {'word': V, 'position': POSITIONS, 'token_type': 2}
    named = {f'bert.embeddings.{name}_embeddings.weight': (rows, H) for name, rows in embeddings.items()}
    named |= norm('bert.embeddings.LayerNorm') | linear('bert.img_embedding', H, F + 6) | norm('bert.LayerNorm')
    for n in range(LAYERS):
        layer = f'bert.encoder.layer.{n}'
        for name in ('self.query', 'self.key', 'self.value', 'output.dense'):
            named |= linear(f'{layer}.attention.{name}', H, H)
        named |= norm(f'{layer}.attention.output.LayerNorm') | norm(f'{layer}.output.LayerNorm')
        named |= linear(f'{layer}.intermediate.dense', FFN, H) | linear(f'{layer}.output.dense', H, FFN)
    return named | linear('bert.pooler.dense', H, H) | linear('classifier', 2, H)


def pretraining_heads():
    """Names and shapes of the tensors that only pre-training needs."""
    transform = linear('cls.predictions.transform.dense', H, H) | norm('cls.predictions.transform.LayerNorm')
    decoder = {'cls.predictions.bias': (V,), 'cls.predictions.decoder.weight': (V, H)}
    return transform | decoder | linear('cls.seq_relationship', 3, H) | {'bert.embeddings.position_ids': (1, 512)}


def draw(named):
    rng = np.random.default_rng(1)
    return {name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in named.items()}


def test_tensors_become_parameters(tmp_path):
    tensors = draw(shapes() | pretraining_heads())
    params = load_oscar(saved(tmp_path, tensors), PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)
    for ours, theirs in (
        ('region_features', 'bert.img_embedding'),
        ('pooler', 'bert.pooler.dense'),
        ('itm_head', 'classifier'),
    ):
        np.testing.assert_array_equal(params[ours]['kernel'], tensors[f'{theirs}.weight'].T)
        np.testing.assert_array_equal(params[ours]['bias'], tensors[f'{theirs}.bias'])
    np.testing.assert_array_equal(params['region_norm']['scale'], tensors['bert.LayerNorm.weight'])
    words = params['bert']['embeddings']
    np.testing.assert_array_equal(words['norm']['scale'], tensors['bert.embeddings.LayerNorm.weight'])
    np.testing.assert_array_equal(
        words['token_types']['embedding'], tensors['bert.embeddings.token_type_embeddings.weight']
    )
    query = params['bert']['encoder']['block_1']['attention']['query']['kernel'][:, 1]
    np.testing.assert_array_equal(query, tensors['bert.encoder.layer.1.attention.self.query.weight'][H // HEADS :].T)


def test_scores_of_a_torch_file_are_those_of_the_torch_model(tmp_path):
    torch = pytest.importorskip('torch')
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.ModuleDict({'self': nn.ModuleDict(), 'output': nn.ModuleDict()})
            for name in ('query', 'key', 'value'):
                self.attention['self'][name] = nn.Linear(H, H)
            self.attention['output'].update({'dense': nn.Linear(H, H), 'LayerNorm': nn.LayerNorm(H, 1e-12)})
            self.intermediate = nn.ModuleDict({'dense': nn.Linear(H, FFN)})
            self.output = nn.ModuleDict({'dense': nn.Linear(FFN, H), 'LayerNorm': nn.LayerNorm(H, 1e-12)})

        def forward(self, x):
            def split(name):
                return self.attention['self'][name](x).view(len(x), HEADS, -1).transpose(0, 1)

            attended = nn.functional.scaled_dot_product_attention(split('query'), split('key'), split('value'))
            after = self.attention['output']
            x = after['LayerNorm'](x + after['dense'](attended.transpose(0, 1).reshape(len(x), H)))
            wide = nn.functional.gelu(self.intermediate['dense'](x))
            return self.output['LayerNorm'](x + self.output['dense'](wide))

    class Oscar(nn.Module):
        def __init__(self):
            super().__init__()
            rows = {'word_embeddings': V, 'position_embeddings': POSITIONS, 'token_type_embeddings': 2}
            embeddings = nn.ModuleDict({name: nn.Embedding(count, H) for name, count in rows.items()})
            embeddings['LayerNorm'] = nn.LayerNorm(H, 1e-12)
            self.bert = nn.ModuleDict({'embeddings': embeddings, 'img_embedding': nn.Linear(F + 6, H)})
            self.bert['LayerNorm'] = nn.LayerNorm(H, 1e-12)
            self.bert['encoder'] = nn.ModuleDict({'layer': nn.ModuleList([Layer() for _ in range(LAYERS)])})
            self.bert['pooler'] = nn.ModuleDict({'dense': nn.Linear(H, H)})
            self.classifier = nn.Linear(H, 2)

        def forward(self, ids, segments, regions):
            embed = self.bert['embeddings']
            words = embed['word_embeddings'](ids) + embed['position_embeddings'](torch.arange(len(ids)))
            words = embed['LayerNorm'](words + embed['token_type_embeddings'](segments))
            x = torch.cat([words, self.bert['LayerNorm'](self.bert['img_embedding'](regions))])
            for layer in self.bert['encoder']['layer']:
                x = layer(x)
            return self.classifier(torch.tanh(self.bert['pooler']['dense'](x[0])))

    torch.manual_seed(0)
    published = Oscar().double()
    assert {name: tuple(tensor.shape) for name, tensor in published.state_dict().items()} == shapes()
    with torch.no_grad():
        for parameter in published.parameters():
            parameter.normal_(std=0.1)
            parameter.copy_(parameter.float())
    torch.save(
        {name: tensor.float() for name, tensor in published.state_dict().items()}, tmp_path / 'pytorch_model.bin'
    )
    images, texts = make_inputs()
    sims = jax.jit(MODEL.apply)({'params': load_oscar(str(tmp_path), PARAMS)}, images, texts)
    for i in range(3):
        for t in range(3):
            sides = (texts, t), (images.tags, i)
            ids = [torch.tensor(side.ids[n, : side.lengths[n]], dtype=torch.long) for side, n in sides]
            segments = torch.cat([torch.full_like(part, n) for n, part in enumerate(ids)])
            count = images.counts[i]
            numbers = np.concatenate([images.regions[i, :count], images.locations[i, :count, :6]], axis=1)
            with torch.no_grad():
                logits = published(torch.cat(ids), segments, torch.tensor(numbers, dtype=torch.float64))
            np.testing.assert_allclose(sims[i, t], float(logits[1] - logits[0]), atol=1e-5)


def test_pretrained_weights_lack_what_fine_tuning_adds(tmp_path, caplog):
    """The old base-vg-labels files have no normalization of regions; no pre-trained file has the classifier."""
    tensors = draw(shapes() | pretraining_heads())
    kept = {name: value for name, value in tensors.items() if not name.startswith(('classifier', 'bert.LayerNorm'))}
    path = saved(tmp_path, kept)
    replacements = load_params(PARAMS, oscar=path)
    assert {name[0] for name in replacements} == {'bert', 'region_features', 'pooler'}
    assert [record.args[1] for record in caplog.records] == ['region_norm', 'itm_head']
    initial = jax.tree.map(lambda leaf: np.full(leaf.shape, 7, np.float32), PARAMS)
    loaded = traverse_util.flatten_dict(replace(initial, replacements))
    assert np.all(loaded['itm_head', 'kernel'] == 7)
    np.testing.assert_array_equal(loaded['pooler', 'kernel'], tensors['bert.pooler.dense.weight'].T)


def test_old_names(tmp_path):
    tensors = draw(shapes())
    want = load_oscar(saved(tmp_path, tensors), PARAMS)
    old = {}
    for name, tensor in tensors.items():
        name = re.sub(r'LayerNorm\.weight$', 'LayerNorm.gamma', name.removeprefix('bert.'))
        old[re.sub(r'LayerNorm\.bias$', 'LayerNorm.beta', name)] = tensor
    chex.assert_trees_all_equal(load_oscar(saved(tmp_path, old), PARAMS), want)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'bert.img_embedding.weight': None},
            "has no tensor 'bert.img_embedding.weight': give OSCAR weights",
        ),
        ({'bert.img_embedding.weight': (H, F)}, f'of shape [{H}, {F}] where the model has [{H}, {F + 6}]'),
        ({'bert.encoder.layer.2.output.dense.bias': (H,)}, 'has not: bert.encoder.layer.2.output.dense.bias; give'),
        (
            {'classifier.weight': None, 'classifier.bias': None, 'classifier.0.bias': (H,), 'classifier.2.bias': (2,)},
            'has tensors that this model has not: classifier.0.bias, classifier.2.bias; give OSCAR weights',
        ),
    ],
)
def test_other_tensors_are_refused(tmp_path, changes, message):
    named = {name: shape for name, shape in (shapes() | changes).items() if shape is not None}
    path = saved(tmp_path, draw(named))
    with pytest.raises(UserError, match=re.escape(message)):
        load_oscar(path, PARAMS)
