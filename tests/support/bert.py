"""The weights of a tiny BERT as they are published."""

import jax
import numpy as np
from safetensors.numpy import save_file

from jitm.importers.bert_weights import NAMES
from jitm.importers.tensors import export
from jitm.layers.transformer import BERT, BERTSize
from jitm.types import Texts

H = 6
FFN = 10
V = 11
POSITIONS = 8
BERT_TINY = BERT(V, BERTSize(hidden=H, layers=2, heads=3, mlp_dim=FFN, max_positions=POSITIONS), 0.1)
TEXTS = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
PARAMS = jax.eval_shape(BERT_TINY.init, jax.random.key(0), TEXTS)['params']


def drawn(params, names, dtype=np.float32, scale=1.0) -> dict[str, np.ndarray]:
    """Random tensors under published names, which the comparisons with PyTorch verify."""
    rng = np.random.default_rng(0)
    return export(
        {'params': jax.tree.map(lambda leaf: rng.normal(scale=scale, size=leaf.shape).astype(dtype), params)}, names
    )


def published(dtype=np.float32) -> dict[str, np.ndarray]:
    """Tensors as `BertModel` names them."""
    return drawn(PARAMS, NAMES, dtype) | {'pooler.dense.weight': np.zeros((H, H), dtype)}


def saved(folder, tensors) -> str:
    path = folder / 'model.safetensors'
    save_file(tensors, path)
    return str(path)
