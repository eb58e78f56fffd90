"""BERT, UNITER and OSCAR as loops over their published tensors, in float64."""

import itertools
import math

import numpy as np

from tests.importers.authors_checkpoints import as_double
from tests.models.cross_attention_oracle import softmax

HEADS = 2


def dense(tensors, name, x):
    return x @ tensors[f'{name}.weight'].T + tensors[f'{name}.bias']


def norm(tensors, name, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-12)
    return scaled * tensors[f'{name}.weight'] + tensors[f'{name}.bias']


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def embed(tensors, ids, segments, prefix):
    rows = {'word': ids, 'position': np.arange(len(ids)), 'token_type': segments}
    total = sum(tensors[f'{prefix}.embeddings.{name}_embeddings.weight'][number] for name, number in rows.items())
    return norm(tensors, f'{prefix}.embeddings.LayerNorm', total)


def read(tensors, x, prefix):
    """The states after all blocks."""
    for n in itertools.count():
        layer = f'{prefix}.encoder.layer.{n}'
        if f'{layer}.output.dense.weight' not in tensors:
            return x
        parts = [dense(tensors, f'{layer}.attention.self.{name}', x) for name in ('query', 'key', 'value')]
        attended = []
        for query, key, value in zip(*(np.split(part, HEADS, axis=1) for part in parts), strict=True):
            scores = query @ key.T / math.sqrt(key.shape[1])
            attended.append(np.array([softmax(row) for row in scores]) @ value)
        attended = dense(tensors, f'{layer}.attention.output.dense', np.concatenate(attended, axis=1))
        x = norm(tensors, f'{layer}.attention.output.LayerNorm', x + attended)
        wide = gelu(dense(tensors, f'{layer}.intermediate.dense', x))
        x = norm(tensors, f'{layer}.output.LayerNorm', x + dense(tensors, f'{layer}.output.dense', wide))


def pooled(tensors, x, prefix):
    return np.tanh(dense(tensors, f'{prefix}.pooler.dense', read(tensors, x, prefix)[0]))


def score_uniter(tensors, ids, tags, regions, locations):
    """UNITER and TAGS-DC, which have no tags."""
    (tensors,) = as_double([tensors])
    image = 'uniter.img_embeddings'
    features = norm(tensors, f'{image}.img_layer_norm', dense(tensors, f'{image}.img_linear', regions))
    positions = norm(tensors, f'{image}.pos_layer_norm', dense(tensors, f'{image}.pos_linear', locations))
    segment = tensors['uniter.embeddings.token_type_embeddings.weight'][1]
    regions = norm(tensors, f'{image}.LayerNorm', features + positions + segment)
    words = embed(tensors, ids, np.zeros_like(ids), 'uniter')
    return dense(tensors, 'rank_output', pooled(tensors, np.concatenate([words, regions]), 'uniter'))[0]


def score_oscar(tensors, ids, tags, regions, locations):
    (tensors,) = as_double([tensors])
    boxes = np.concatenate([regions, locations[:, :6]], axis=1)
    regions = norm(tensors, 'bert.LayerNorm', dense(tensors, 'bert.img_embedding', boxes))
    segments = np.array([0] * len(ids) + [1] * len(tags))
    words = embed(tensors, np.concatenate([ids, tags]), segments, 'bert')
    logits = dense(tensors, 'classifier', pooled(tensors, np.concatenate([words, regions]), 'bert'))
    return logits[1] - logits[0]
