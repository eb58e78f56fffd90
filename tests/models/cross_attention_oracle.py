"""Attention of SCAN and BFAN as loops over words and regions in float64, to hold fast kernels against.

An image is V [R, D], its real regions only, in their slots 0 .. R-1; a caption is W [n, D], its real words only, with
<start> and <end>. Attention weights are always [n, R], word by region, whichever side attends.
"""

import numpy as np


def leaky_relu(x):
    return x if x > 0 else 0.1 * x


def l2norm(x):
    return x / (np.sqrt(np.sum(x**2)) + 1e-8)


def softmax(x):
    exps = np.exp(x - np.max(x))
    return exps / np.sum(exps)


def attention(queries, contexts, *, softmax_temperature):
    """SCAN's attention: queries [Lq, D], contexts [Lc, D] -> weights [Lq, Lc], rows of sum 1."""
    normalized = [l2norm(np.array([leaky_relu(np.dot(context, query)) for query in queries])) for context in contexts]
    return np.array([softmax(softmax_temperature * column) for column in np.array(normalized).T])


def scan_attention(V, W, *, direction='t2i', softmax_temperature=9.0):
    """Weights [n, R]: t2i: of the regions for each word, rows of sum 1; i2t: of the words for each region, columns."""
    options = {'softmax_temperature': softmax_temperature}
    return attention(W, V, **options) if direction == 't2i' else attention(V, W, **options).T


def focal_weights(x, focal):
    """Drops what is below the focal average of one row of attention [Lc], and makes the rest sum to 1.

    The equal form Lc x_i - sum_j x_j is written sum_j (x_i - x_j), which is exactly 0 on a uniform row: its mask is
    empty, and the weights are 0, where the release divides 0 by 0.
    """
    kept = np.zeros(len(x))
    for i in range(len(x)):
        above = 0.0
        for j in range(len(x)):
            above += (x[i] - x[j]) * {'equal': 1.0, 'prob': np.sqrt(x[j])}[focal]
        if above > 0:
            kept[i] = x[i]
    return kept / np.sum(kept) if np.any(kept) else kept


def bfan_attention(V, W, *, focal, softmax_temperature=20.0):
    """Weights after focusing, t2i [n, R] (rows of sum 1 or 0) and i2t [n, R] (columns of sum 1 or 0)."""
    t2i = attention(W, V, softmax_temperature=softmax_temperature)
    i2t = attention(V, W, softmax_temperature=softmax_temperature)
    return np.array([focal_weights(x, focal) for x in t2i]), np.array([focal_weights(x, focal) for x in i2t]).T
