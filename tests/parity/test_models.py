"""Each model against PyTorch: scores in evaluation and in training, gradients of all weights, running statistics.

Both have the same weights: jitm reads those of the other network with its importer of the authors' checkpoints. PyTorch
computes in float64. CLIP, BERT and the networks of photos are compared in `tests/importers`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jitm.data.text.word_level import SPECIAL_WORDS, Vocabulary
from jitm.importers import joint_checkpoints, key_maps
from jitm.importers.authors import load_checkpoint
from jitm.importers.containers import open_checkpoint
from jitm.importers.joint_checkpoints import load_joint
from jitm.importers.released import ReleasedModel, shapes_of
from jitm.importers.systems import SYSTEMS
from jitm.importers.tensors import KeyMap, convert, export
from jitm.models.joint import read_pairs
from jitm.models.make import make_model
from jitm.models.matcher import Matcher
from jitm.types import Images, Texts
from tests.configs import settings
from tests.parity import torch_models as theirs
from tests.parity.bounds import assert_within

pytestmark = pytest.mark.needs('torch', 'transformers')
loops = theirs.loops

LETTERS = 'abcdefgh'
VOCABULARIES = {  # file -> content
    'words.json': Vocabulary((*SPECIAL_WORDS, *LETTERS)).to_json(),
    'vocab.txt': '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *LETTERS[:-1]]),
}
READOUTS = {'t2i': 'model.2', 'i2t': 'model.3'}  # of GSMN, of which jitm reads no released checkpoints
GSMN = KeyMap(
    modules=dict(key_maps.SCAN.modules)
    | {f'{ours}/{layer}': f'{of}.{layer}' for ours, of in READOUTS.items() for layer in ('kernels', 'hidden', 'score')},
    variables={f'{ours}/{x}/length': f'{of}.lengths.{x}' for ours, of in READOUTS.items() for x in ('hidden', 'score')},
)
NAMES = {'tags_dc': joint_checkpoints.UNITER_NAMES, 'oscar': joint_checkpoints.OSCAR_NAMES, 'gsmn': GSMN}
PAIRS = 5
SEED = 42  # with which NAAF mines its thresholds from two captions
CHANGES = {'dropout': 0.0, 'output_dropout': 0.0, 'dtype': 'float32'}  # of keys of all models


class Case(NamedTuple):
    """A row of docs/notes/parity.md, a network, the system that jitm reads it as, and changes of the config's model."""

    row: str
    make: Callable[[], Any]
    system: str
    changes: Mapping[str, Any] = {}


def pooled(images, texts, pooling='gpool', **options):
    return lambda: theirs.PooledVSE(images(**options), texts(), pooling)


def cross(row, similarity, **options):
    return Case(row, lambda: theirs.CrossAttention(similarity(), **options), row.lower())


REGIONS, MLP, WORDS, PIECES = theirs.Regions, theirs.MLPRegions, theirs.Words, theirs.Pieces
CASES = {  # by the config
    'vsepp:vsepp,f30k': Case('VSE++', theirs.VSE, 'vsepp'),
    'vsepp:vse0,f30k': Case('VSE++', lambda: theirs.VSE(normalize=False), 'vsepp'),
    'vsepp:orderpp,f30k': Case('Order++', theirs.OrderEmbedding, 'vsepp'),
    'vsepp:order0,f30k': Case('Order++', lambda: theirs.OrderEmbedding(absolute=True), 'vsepp'),
    'vse:fc,max,f30k': Case('RVSE++', pooled(REGIONS, WORDS), 'rvsepp'),
    'vse:mlp,max,f30k': Case('RVSE++', pooled(MLP, WORDS, residual=False), 'rvsepp', {'mlp': 'plain'}),
    'vse:rvsepp,selhn,f30k': Case('RVSE++', pooled(MLP, PIECES), 'rvsepp'),
    'vse_infinity:gru,f30k': Case('VSE-infinity', pooled(MLP, WORDS, on_input=True), 'vse_infinity'),
    'vse_infinity:esa,gru,f30k': Case('ESA', pooled(MLP, WORDS, 'linear1', on_input=True), 'esa'),
    'vsrn:f30k': Case('VSRN', lambda: theirs.VSRN(coco=False), 'vsrn'),
    'vsrn:coco': Case('VSRN', lambda: theirs.VSRN(coco=True), 'vsrn'),
    'scan:t2i,lse,f30k': cross('SCAN', lambda: loops.SCAN('t2i', 9.0, 6.0)),
    'scan:t2i,avg,f30k': cross('SCAN', lambda: loops.SCAN('t2i', 9.0)),
    'scan:i2t,lse,f30k': cross('SCAN', lambda: loops.SCAN('i2t', 4.0, 5.0)),
    'scan:i2t,avg,f30k': cross('SCAN', lambda: loops.SCAN('i2t', 4.0)),
    'bfan:equal,f30k': cross('BFAN', lambda: loops.BFAN('equal')),
    'bfan:prob,f30k': cross('BFAN', lambda: loops.BFAN('prob')),
    'imram:both,f30k': Case('IMRAM', lambda: theirs.IMRAM(('t2i', 'i2t')), 'imram'),
    'imram:t2i,f30k': Case('IMRAM', lambda: theirs.IMRAM(('t2i',)), 'imram'),
    'imram:i2t,coco': Case('IMRAM', lambda: theirs.IMRAM(('i2t',), scale=11.0), 'imram'),
    'gsmn:f30k': Case('GSMN', theirs.GSMN, 'gsmn'),
    'naaf:f30k': Case('NAAF', lambda: theirs.NAAF(minimum_words=4), 'naaf', {'minimum_words': 4}),
    'sgraf:sgr,f30k': Case('SGRAF', lambda: theirs.SGRAF('SGR'), 'sgraf'),
    'sgraf:saf,f30k': Case('SGRAF', lambda: theirs.SGRAF('SAF'), 'sgraf'),
    'dbl:baseline,max,alone,f30k': cross('DBL', lambda: loops.DBL(theirs.DIM, theirs.ALIGNMENT_DIM), gru='cap_rnn'),
    'tags:tags_dc,f30k': Case('UNITER', theirs.UNITER, 'tags_dc'),
    'oscar:alone,base,coco': Case('OSCAR', theirs.OSCAR, 'oscar'),
}


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    """Networks of this size are faster without a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spread(network):
    """Gives each weight of a network of PyTorch and each running statistic another value than its initial one."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    return network


def make_inputs(system: str) -> tuple[Images, Texts]:
    """Returns images and captions of different sizes; SGRAF has a batch normalization for each of its regions."""
    rng = np.random.default_rng(0)
    counts = np.full(PAIRS, theirs.SLOTS) if system == 'sgraf' else np.array([4, 2, 3, 4, 3])
    regions = rng.normal(size=(PAIRS, theirs.SLOTS, theirs.FEATURES)).astype(np.float32)
    tags, texts = (
        Texts(rng.integers(1, theirs.WORDS, (PAIRS, max(lengths))).astype(np.int32), np.array(lengths, np.int32))
        for lengths in ([1, 3, 2, 3, 0], [5, 3, 7, 2, 4])
    )
    locations = rng.random((PAIRS, theirs.SLOTS, 7)).astype(np.float32)
    return Images(regions, counts.astype(np.int32), locations=locations, tags=tags), texts


def in_torch(system: str, images: Images, texts: Texts) -> tuple[list, list]:
    """Returns lists of images and of captions, without padding and in float64."""

    def rows(x, lengths):
        x = torch.tensor(x if x.dtype == np.int32 else x.astype(np.float64))
        return [row[:length] for row, length in zip(x, lengths, strict=True)]

    regions, locations = (rows(x, images.counts) for x in (images.regions, images.locations))
    if system == 'tags_dc':
        regions = [*zip(regions, locations, strict=True)]
    if system == 'oscar':
        boxes = [torch.cat([r, x[:, :6]], dim=1) for r, x in zip(regions, locations, strict=True)]
        regions = [*zip(boxes, rows(images.tags.ids, images.tags.lengths), strict=True)]
    return regions, rows(texts.ids, texts.lengths)


def load_gsmn(system: str, path: str, vocabulary: str, model: Mapping[str, Any]) -> ReleasedModel:
    """Reads the weights of the network of GSMN."""
    text = dict(model['text'], word_dim=theirs.WORD_DIM)
    section = dict(model, embed_dim=theirs.DIM, blocks=theirs.BLOCKS, text=text)
    images = Images(np.zeros((1, 1, theirs.FEATURES), np.float32), np.ones(1, np.int32))
    shapes = shapes_of(section, theirs.WORDS, images)
    names = NAMES[system]
    variables = convert(path, open_checkpoint(path, system, names.pattern()).tensors, shapes, names, system)
    return ReleasedModel(section, variables, None, vocabulary, {})


READERS = {'tags_dc': load_joint, 'oscar': load_joint, 'gsmn': load_gsmn}


def load(name: str, network, folder) -> tuple[Matcher, dict[str, chex.ArrayTree]]:
    """Returns the model and the variables that jitm reads from the weights of a network."""
    case = CASES[name]
    config = settings.load(name)
    vocabulary = 'vocab.txt' if config['vocabulary']['path'].endswith('.txt') else 'words.json'
    (folder / vocabulary).write_text(VOCABULARIES[vocabulary])
    np.savez(folder / 'x.npz', **network.state_dict())
    released = READERS.get(case.system, load_checkpoint)(
        case.system, str(folder / 'x.npz'), str(folder / vocabulary), config['model']
    )
    changes = CHANGES | case.changes

    def change(section):
        return {key: change(x) if isinstance(x, dict) else changes.get(key, x) for key, x in section.items()}

    return make_model(change(released.model), theirs.WORDS), released.variables


@functools.partial(jax.jit, static_argnums=0)
def run(model: Matcher, variables, images: Images, texts: Texts, weights: chex.Array):
    """Returns scores in evaluation and in training, the gradients of their weighted sum, and the new statistics."""

    def train(params):
        bound = variables | {'params': params}
        rngs = {'dropout': jax.random.key(0)}
        scores, updated = model.apply(bound, images, texts, train=True, mutable=['batch_stats'], rngs=rngs)
        return jnp.sum(weights * scores), (scores, updated)

    gradients, (scores, updated) = jax.grad(train, has_aux=True)(variables['params'])
    return model.apply(variables, images, texts), scores, gradients, updated


def run_torch(network, images, captions, weights):
    """Returns the same of a network of PyTorch: scores twice, gradients by name, and the state after training."""
    with torch.no_grad():
        evaluated = network.double().eval()(images, captions)
    scores = network.train()(images, captions)
    torch.sum(torch.tensor(weights) * scores).backward()
    gradients = {name: x.grad if x.grad is not None else torch.zeros_like(x) for name, x in network.named_parameters()}
    return evaluated, scores, gradients, network.state_dict()


@pytest.mark.parametrize('name', CASES)
def test_scores_gradients_and_statistics(tmp_path, name):
    row, make, system, _ = CASES[name]
    torch.manual_seed(SEED)
    network = spread(make())
    model, variables = load(name, network, tmp_path)
    images, texts = make_inputs(system)
    weights = np.random.default_rng(1).normal(size=(PAIRS, PAIRS)).astype(np.float32)
    *got, gradients, updated = run(model, variables, images, texts, weights)
    *want, by_name, state = run_torch(network, *in_torch(system, images, texts), weights)
    for ours, others in zip(got, want, strict=True):
        assert others.std() > 0.01
        assert_within(row, ours, others)

    # Parameters that jitm leaves out have no effect, so that their gradient is 0.
    names, prepare = (NAMES[system], dict) if system in NAMES else (SYSTEMS[system].names, SYSTEMS[system].prepare)
    exported = export({'params': gradients}, names)
    assert_within(row, {name: exported.get(name, 0 * x) for name, x in by_name.items()}, by_name)

    # Statistics, and the thresholds of NAAF.
    before, after = (export({'batch_stats': of.get('batch_stats', {})}, names) for of in (variables, updated))
    assert all(np.any(after[name] != x) for name, x in before.items())
    state = prepare({name: tensor.numpy for name, tensor in state.items()})
    for statistic, value in after.items():
        assert_within(row, value, state[statistic]())


def test_heads_of_uniter(tmp_path):
    name = 'tags:tags_dc,f30k'
    row, make, system, _ = CASES[name]
    torch.manual_seed(SEED)
    network = spread(make())
    model, variables = load(name, network, tmp_path)
    images, texts = make_inputs(system)

    @jax.jit
    def heads(variables):
        bound = model.bind(variables)
        return read_pairs(bound, bound.encode_image(images), bound.encode_text(texts), model.heads)

    got = heads(variables)
    network.double()
    with torch.no_grad():
        for n, pair in enumerate(zip(*in_torch(system, images, texts), strict=True)):
            ours = {head: x[n] if x.ndim == 2 else x[n, : len(pair[1])] for head, x in got.items()}
            assert_within(row, ours, network.heads(*pair))
