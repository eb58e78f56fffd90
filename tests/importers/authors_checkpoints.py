"""Checkpoints in the layout of the authors' training scripts, and their scores as loops in float64."""

from pathlib import Path

import numpy as np

from jitm.data.text import SPECIAL_WORDS, Vocabulary
from tests.importers.torch_pickles import Build, Call, Global, write_zip
from tests.models import cross_attention_oracle as oracle

D, W, F, M, SLOTS = 6, 5, 7, 5, 3
WORDS = (*SPECIAL_WORDS, *'abcdefgh')
MEMORY = {'gate': 'gate', 'output': 'linear'}  # the oracle's name -> that of IMRAM
CAPTIONS = (np.array([1, 4, 5, 2]), np.array([1, 11, 7, 8, 6, 3, 2]), np.array([1, 2]))


def write_vocabulary(folder: Path, words=WORDS) -> str:
    path = folder / 'vocabulary.json'
    path.write_text(Vocabulary(tuple(words)).to_json())
    return str(path)


def write_checkpoint(path: Path, modules, options=None, write=write_zip, prefix='', **others) -> str:
    """Writes {'optimizer', 'model': a list of dicts of tensors, 'opt'}."""
    model = [{f'{prefix}{name}': x for name, x in tensors.items()} for tensors in modules]
    adam = {'state': {0: {'exp_avg': np.ones((2, 3), np.float32), 'step': 5}}}
    namespace = Build(Call(Global('argparse', 'Namespace'), ()), options or {})
    return write(path, {'optimizer': adam, 'model': model, 'opt': namespace, 'Eiters': 10} | others)


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def linear(rng, name, outputs, inputs):
    return {
        f'{name}.weight': random(rng, outputs, inputs) / np.float32(np.sqrt(inputs)),
        f'{name}.bias': random(rng, outputs),
    }


def norm(rng, name, channels):
    tensors = {f'{name}.{leaf}': random(rng, channels) for leaf in ('weight', 'bias', 'running_mean')}
    variance = rng.uniform(0.5, 1.5, channels).astype(np.float32)
    return tensors | {f'{name}.running_var': variance, f'{name}.num_batches_tracked': np.array(7)}


def gru(rng, name, features, inputs, bidirectional):
    tensors = {}
    for direction in ('_l0', '_l0_reverse')[: 1 + bidirectional]:
        tensors |= {
            f'{name}.weight_ih{direction}': random(rng, 3 * features, inputs) / 2,
            f'{name}.weight_hh{direction}': random(rng, 3 * features, features) / 2,
            f'{name}.bias_ih{direction}': random(rng, 3 * features),
            f'{name}.bias_hh{direction}': random(rng, 3 * features),
        }
    return tensors


def encoders(rng, rnn='rnn', bidirectional=True):
    """The modules of images and of texts."""
    texts = {'embed.weight': random(rng, len(WORDS), W), **gru(rng, rnn, D, W, bidirectional)}
    return [linear(rng, 'fc', D, F), texts]


def sgraf(rng, reasoning):
    tensors = {}
    for side in ('v', 't'):
        for part in ('local', 'global'):
            tensors |= linear(rng, f'{side}_global_w.embedding_{part}.0', D, D)
        tensors |= linear(rng, f'{side}_global_w.embedding_common.0', 1, D)
    tensors |= norm(rng, 'v_global_w.embedding_local.1', SLOTS) | norm(rng, 'v_global_w.embedding_global.1', D)
    for name in ('sim_tranloc_w', 'sim_tranglo_w'):
        tensors |= linear(rng, name, M, D)
    tensors |= linear(rng, 'sim_eval_w', 1, M)
    if reasoning == 'SAF':
        return [
            *encoders(rng, 'cap_rnn'),
            tensors | linear(rng, 'SAF_module.attn_sim_w', 1, M) | norm(rng, 'SAF_module.bn', 1),
        ]
    for n in range(3):
        for name in ('graph_query_w', 'graph_key_w', 'sim_graph_w'):
            tensors |= linear(rng, f'SGR_module.{n}.{name}', M, M)
        tensors[f'SGR_module.{n}.sim_graph_w.bias'] += 2  # so that few of its units are 0
    return [*encoders(rng, 'cap_rnn'), tensors]


def dbl(rng):
    return [*encoders(rng, 'cap_rnn'), linear(rng, 'sim_tran_w', M, D) | linear(rng, 'sim_eval_w', 1, M)]


def imram(rng):
    tensors = {}
    for name in ('linear_t2i', 'gate_t2i', 'linear_i2t', 'gate_i2t'):
        tensors |= linear(rng, name, D, 2 * D)
    return [*encoders(rng), tensors]


def naaf(rng):
    images, texts = encoders(rng)
    return [images, {name.replace('embed.', 'embed.glove.'): x for name, x in texts.items()}]


def vsrn(rng, layers=2, batch_norm=True):
    images = linear(rng, 'fc', D, F) | gru(rng, 'img_rnn', D, D, bidirectional=False)
    for n in range(1, layers + 1):
        for name in ('g', 'theta', 'phi', 'W.0'):
            images |= linear(rng, f'Rs_GCN_{n}.{name}', D, D)
            images[f'Rs_GCN_{n}.{name}.weight'] = images[f'Rs_GCN_{n}.{name}.weight'][:, :, None]
        images |= norm(rng, f'Rs_GCN_{n}.W.1', D)
    images |= norm(rng, 'bn', D) if batch_norm else {}
    return [images, encoders(rng, bidirectional=False)[1]]


def pooled(rng, pooling, mlp_inputs):
    """VSE-infinity, ESA and RVSE++."""
    images, texts = encoders(rng)
    images |= linear(rng, 'mlp.layers.0', D // 2, mlp_inputs) | linear(rng, 'mlp.layers.1', D, D // 2)
    images |= norm(rng, 'mlp.bns.0', D // 2) | norm(rng, 'mlp.bns.1', D)
    for side in (images, texts):
        if pooling == 'esa':
            side |= linear(rng, 'linear1', D, D)
        else:
            side |= gru(rng, 'gpool.gru', 32, 32, bidirectional=True) | {'gpool.linear.weight': random(rng, 1, 32) / 10}
    return [images, texts]


# The forward passes of the authors, in float64.


def as_double(modules):
    return [{name: np.asarray(value, np.float64) for name, value in tensors.items()} for tensors in modules]


def apply_linear(tensors, name, x):
    return tensors[f'{name}.weight'] @ x + tensors[f'{name}.bias']


def run_gru(tensors, name, inputs, direction):
    """The states after each input, in the order of the inputs."""
    weight_ih, weight_hh = (tensors[f'{name}.weight_{side}{direction}'] for side in ('ih', 'hh'))
    bias_ih, bias_hh = (tensors[f'{name}.bias_{side}{direction}'] for side in ('ih', 'hh'))
    backward = direction.endswith('_reverse')
    state, states = np.zeros(weight_hh.shape[1]), []
    for x in inputs[::-1] if backward else inputs:
        of_input, of_state = np.split(weight_ih @ x + bias_ih, 3), np.split(weight_hh @ state + bias_hh, 3)
        reset, update = (oracle.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2], strict=True))
        new = np.tanh(of_input[2] + reset * of_state[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return np.array(states[::-1] if backward else states)


def read_words(tensors, ids, rnn='rnn', embedding='embed.weight'):
    """The states of a GRU after each word, averaged over its directions."""
    directions = [d for d in ('_l0', '_l0_reverse') if f'{rnn}.weight_ih{d}' in tensors]
    return np.mean([run_gru(tensors, rnn, tensors[embedding][ids], d) for d in directions], axis=0)


def unit_rows(rows):
    return np.array([oracle.l2norm(row) for row in rows])


def encode(modules, regions, ids, rnn='rnn'):
    images, texts, *_ = modules
    return unit_rows([apply_linear(images, 'fc', x) for x in regions]), unit_rows(read_words(texts, ids, rnn))


def score_all(score, modules, images, captions=CAPTIONS):
    """Scores [I, T] in float64 of a function of (modules, regions, ids)."""
    modules = as_double(modules)
    return np.array([[score(modules, image.astype(np.float64), ids) for ids in captions] for image in images])


def score_vsepp(modules, regions, ids, measure='cosine', normalize=True, absolute=False):
    image = apply_linear(modules[0], 'fc', regions[0])
    image = oracle.l2norm(image) if normalize else image
    text = oracle.l2norm(read_words(modules[1], ids)[-1])
    image, text = (np.abs(image), np.abs(text)) if absolute else (image, text)
    return image @ text if measure == 'cosine' else -np.sqrt(np.sum(np.maximum(text - image, 0) ** 2))


def score_scan(modules, regions, ids, **options):
    return oracle.scan_score(*encode(modules, regions, ids), **options)


def score_bfan(modules, regions, ids, **options):
    return oracle.bfan_score(*encode(modules, regions, ids), **options)


def score_sgraf(modules, regions, ids, reasoning):
    params = sgraf_params(modules[2])
    score = oracle.sgr_score if reasoning == 'SGR' else oracle.saf_score
    return score(*encode(modules, regions, ids, 'cap_rnn'), params)


def score_dbl(modules, regions, ids, **options):
    images, words = encode(modules, regions, ids, 'cap_rnn')
    names = {'local_alignment': 'sim_tran_w', 'score': 'sim_eval_w'}
    params = {f'{ours}/kernel': modules[2][f'{theirs}.weight'].T for ours, theirs in names.items()}
    params |= {f'{ours}/bias': modules[2][f'{theirs}.bias'] for ours, theirs in names.items()}
    return oracle.dbl_score(images, words, params, **options)


def score_imram(modules, regions, ids, **options):
    names = {f'{side}_{ours}': f'{part}_{side}' for side in ('t2i', 'i2t') for ours, part in MEMORY.items()}
    params = {f'{ours}/kernel': modules[2][f'{theirs}.weight'].T for ours, theirs in names.items()}
    params |= {f'{ours}/bias': modules[2][f'{theirs}.bias'] for ours, theirs in names.items()}
    return oracle.imram_score(*encode(modules, regions, ids), params, **options)


def score_naaf(modules, regions, ids, threshold):
    images, texts = modules
    words = unit_rows(read_words(texts, ids, embedding='embed.glove.weight'))
    regions = unit_rows([apply_linear(images, 'fc', x) for x in regions])
    return oracle.naaf_score(regions, words, threshold=threshold, smooth=True)


def apply_norm(tensors, name, x):
    scaled = (x - tensors[f'{name}.running_mean']) / np.sqrt(tensors[f'{name}.running_var'] + 1e-5)
    return scaled * tensors[f'{name}.weight'] + tensors[f'{name}.bias']


def score_vsrn(modules, regions, ids, layers=2):
    images, texts = modules
    matrices = {name: x[:, :, 0] if x.ndim == 3 else x for name, x in images.items()}
    nodes = np.array([apply_linear(images, 'fc', x) for x in regions])
    nodes = nodes if 'bn.weight' in images else unit_rows(nodes.T).T
    for n in range(1, layers + 1):
        theta, phi, g = (
            [apply_linear(matrices, f'Rs_GCN_{n}.{name}', node) for node in nodes] for name in ('theta', 'phi', 'g')
        )
        new = []
        for node, query in zip(nodes, theta, strict=True):
            mixed = sum(np.dot(query, key) / len(nodes) * value for key, value in zip(phi, g, strict=True))
            update = apply_linear(matrices, f'Rs_GCN_{n}.W.0', mixed)
            new.append(node + apply_norm(images, f'Rs_GCN_{n}.W.1', update))
        nodes = np.array(new)
    vector = run_gru(images, 'img_rnn', unit_rows(nodes.T).T, '_l0')[-1]
    vector = apply_norm(images, 'bn', vector) if 'bn.weight' in images else vector
    return oracle.l2norm(vector) @ oracle.l2norm(read_words(texts, ids)[-1])


def pool(tensors, rows, pooling):
    if pooling == 'esa':
        weights = np.array(
            [oracle.softmax(column) for column in np.array([apply_linear(tensors, 'linear1', row) for row in rows]).T]
        ).T
        return np.sum(weights * rows, axis=0)
    angles = np.arange(len(rows))[:, None] * np.exp(-np.arange(0, 32, 2) * np.log(1e4) / 32)
    positions = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(rows), 32)
    states = np.mean([run_gru(tensors, 'gpool.gru', positions, d) for d in ('_l0', '_l0_reverse')], axis=0)
    weights = oracle.softmax((states @ tensors['gpool.linear.weight'][0]) / 0.1)
    return weights @ -np.sort(-rows, axis=0)


def encode_pooled(images, regions, pooling, on_input):
    rows = []
    for region in regions:
        row = apply_linear(images, 'fc', region)
        hidden = apply_linear(images, 'mlp.layers.0', region if on_input else row)
        rows.append(row + apply_linear(images, 'mlp.layers.1', np.maximum(apply_norm(images, 'mlp.bns.0', hidden), 0)))
    return oracle.l2norm(pool(images, np.array(rows), pooling))


def score_pooled(modules, regions, ids, pooling, on_input):
    images, texts = modules
    text = oracle.l2norm(pool(texts, read_words(texts, ids), pooling))
    return encode_pooled(images, regions, pooling, on_input) @ text


def sgraf_params(tensors):
    """The tensors under the names of the oracle."""
    names = {
        **{
            f'{ours}_{part}': f'{side}_global_w.embedding_{part}.0'
            for ours, side in (('image', 'v'), ('text', 't'))
            for part in ('local', 'global', 'common')
        },
        'local_alignment': 'sim_tranloc_w',
        'global_alignment': 'sim_tranglo_w',
        'score': 'sim_eval_w',
        'filter': 'SAF_module.attn_sim_w',
        **{
            f'graph_{n}_{ours}': f'SGR_module.{n}.{theirs}'
            for n in range(3)
            for ours, theirs in (('query', 'graph_query_w'), ('key', 'graph_key_w'), ('update', 'sim_graph_w'))
        },
    }
    norms = {
        'image_local_norm': 'v_global_w.embedding_local.1',
        'image_global_norm': 'v_global_w.embedding_global.1',
        'filter_norm': 'SAF_module.bn',
    }
    params = {}
    for ours, theirs in names.items():
        if f'{theirs}.weight' in tensors:
            params |= {f'{ours}/kernel': tensors[f'{theirs}.weight'].T, f'{ours}/bias': tensors[f'{theirs}.bias']}
    leaves = {'scale': 'weight', 'bias': 'bias', 'mean': 'running_mean', 'variance': 'running_var'}
    for ours, theirs in norms.items():
        if f'{theirs}.weight' in tensors:
            params |= {f'{ours}/{leaf}': tensors[f'{theirs}.{name}'] for leaf, name in leaves.items()}
    return params
