"""Cross-attention scores as loops over images, captions, words and regions in float64, to hold fast kernels against.

An image is V [R, D], its real regions only, in their slots 0 .. R-1; a caption is W [n, D], its real words only, with
<start> and <end>. Only NAAF's formulas take unit vectors for granted. Attention weights are always [n, R], word by
region, whichever side asks.

Parameters are one flat dict, D features, M numbers in an alignment, R region slots:

    image_local, image_global, text_local, text_global             /kernel [D, D]  /bias [D]
    image_common, text_common                                      /kernel [D, 1]  /bias [1]
    image_local_norm                                               /scale /bias /mean /variance [R]
    image_global_norm                                              /scale /bias /mean /variance [D]
    local_alignment, global_alignment                              /kernel [D, M]  /bias [M]
    graph_0_query, graph_0_key, graph_0_update, same for 1 and 2   /kernel [M, M]  /bias [M]     SGR
    filter                                                         /kernel [M, 1]  /bias [1]     SAF
    filter_norm                                                    /scale /bias /mean /variance [1]
    score                                                          /kernel [M, 1]  /bias [1]

DBL's network reads local_alignment and score. Dropout is left out everywhere. IMRAM has its own,
for each direction, t2i and i2t:

    {direction}_gate, {direction}_output                           /kernel [2 D, D]  /bias [D]
"""

import numpy as np


def leaky_relu(x):
    return x if x > 0 else 0.1 * x


def l2norm(x):
    return x / (np.sqrt(np.sum(x**2)) + 1e-8)


def l1norm(x):
    return x / (np.sum(np.abs(x)) + 1e-8)


def softmax(x):
    exps = np.exp(x - np.max(x))
    return exps / np.sum(exps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cosine(x, y):
    return np.dot(x, y) / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-8)


def weighted_sum(weights, vectors):
    total = np.zeros(vectors.shape[1])
    for weight, vector in zip(weights, vectors, strict=True):
        total = total + weight * vector
    return total


def average(vectors):
    return weighted_sum([1 / len(vectors)] * len(vectors), vectors)


def attention(queries, contexts, *, softmax_temperature):
    """SCAN's attention: queries [Lq, D], contexts [Lc, D] -> weights [Lq, Lc], rows of sum 1."""
    normalized = [l2norm(np.array([leaky_relu(np.dot(context, query)) for query in queries])) for context in contexts]
    return np.array([softmax(softmax_temperature * column) for column in np.array(normalized).T])


# SCAN


def scan_attention(V, W, *, direction='t2i', softmax_temperature=9.0):
    """Weights [n, R]: t2i: of the regions for each word, rows of sum 1; i2t: of the words for each region, columns."""
    options = {'softmax_temperature': softmax_temperature}
    return attention(W, V, **options) if direction == 't2i' else attention(V, W, **options).T


def scan_score(V, W, *, direction, softmax_temperature, lse_temperature=None):
    """SCAN, with LogSumExp, or with the mean where `lse_temperature` is None."""
    weights = scan_attention(V, W, direction=direction, softmax_temperature=softmax_temperature)
    if direction == 't2i':
        relevance = [cosine(W[k], weighted_sum(weights[k], V)) for k in range(len(W))]
    else:
        relevance = [cosine(V[r], weighted_sum(weights[:, r], W)) for r in range(len(V))]
    if lse_temperature is None:
        return np.mean(relevance)
    return np.log(sum(np.exp(lse_temperature * r) for r in relevance)) / lse_temperature


# BFAN


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


def bfan_score(V, W, *, focal):
    """BFAN, in [-2, 2]. A vector with nothing to attend to attends to the zero vector, and adds 0 to the mean."""
    t2i, i2t = bfan_attention(V, W, focal=focal)
    words = [cosine(W[k], weighted_sum(t2i[k], V)) for k in range(len(W))]
    regions = [cosine(V[r], weighted_sum(i2t[:, r], W)) for r in range(len(V))]
    return sum(words) / len(words) + sum(regions) / len(regions)


# SGRAF


def linear(params, name, x):
    return x @ params[f'{name}/kernel'] + params[f'{name}/bias']


def batch_norm(params, name, x, mean, variance, channel=...):
    scaled = (x - mean) / np.sqrt(variance + 1e-5)
    return scaled * params[f'{name}/scale'][channel] + params[f'{name}/bias'][channel]


def self_attention(features, local, guide, params, name):
    """l2norm(sum_k w_k features_k), w = softmax over k of Linear(local_k * guide)."""
    logits = [linear(params, name, x * guide)[0] for x in local]
    return l2norm(weighted_sum(softmax(np.array(logits)), features))


def image_global(V, params):
    """The image's global vector [D] in evaluation. Region r is normalised by channel r of the local norm."""
    local = []
    for r in range(len(V)):
        mean, variance = params['image_local_norm/mean'][r], params['image_local_norm/variance'][r]
        local.append(
            np.tanh(batch_norm(params, 'image_local_norm', linear(params, 'image_local', V[r]), mean, variance, r))
        )
    mean, variance = params['image_global_norm/mean'], params['image_global_norm/variance']
    guide = linear(params, 'image_global', average(V))
    guide = np.tanh(batch_norm(params, 'image_global_norm', guide, mean, variance))
    return self_attention(V, local, guide, params, 'image_common')


def text_global(W, params):
    """The caption's global vector [D]: as the image's, without normalisation."""
    local = [np.tanh(linear(params, 'text_local', w)) for w in W]
    guide = np.tanh(linear(params, 'text_global', average(W)))
    return self_attention(W, local, guide, params, 'text_common')


def local_alignments(V, W, params):
    """Alignment of each word with what it attends to: l2norm(Linear((ctx_k - word_k)^2)), [n, M]."""
    attended = [l2norm(weighted_sum(row, V)) for row in scan_attention(V, W)]
    return np.array([l2norm(linear(params, 'local_alignment', (attended[k] - W[k]) ** 2)) for k in range(len(W))])


def alignments(V, W, image_vector, text_vector, params):
    """The nodes of SGR and SAF [1 + n, M]: the alignment of the global vectors [D], then the local ones."""
    whole = l2norm(linear(params, 'global_alignment', (image_vector - text_vector) ** 2))
    return np.array([whole, *local_alignments(V, W, params)])


def sgr_score(V, W, params):
    """SGR in evaluation, in (0, 1): three steps of reasoning on the alignments, then the global node."""
    nodes = alignments(V, W, image_global(V, params), text_global(W, params), params)
    for step in range(3):
        queries = [linear(params, f'graph_{step}_query', node) for node in nodes]
        keys = [linear(params, f'graph_{step}_key', node) for node in nodes]
        new = []
        for query in queries:
            edges = softmax(np.array([np.dot(query, key) for key in keys]))
            new.append(np.maximum(linear(params, f'graph_{step}_update', weighted_sum(edges, nodes)), 0))
        nodes = np.array(new)
    return sigmoid(linear(params, 'score', nodes[0])[0])


def saf_readout(nodes, params, mean, variance):
    """SAF's score of the alignments [1 + n, M], given the statistics of the normalisation."""
    logits = [linear(params, 'filter', node)[0] for node in nodes]
    gates = [sigmoid(batch_norm(params, 'filter_norm', x, mean, variance, 0)) for x in logits]
    filtered = l2norm(weighted_sum(l1norm(np.array(gates)), nodes))
    return sigmoid(linear(params, 'score', filtered)[0])


def saf_score(V, W, params):
    """SAF in evaluation, in (0, 1)."""
    nodes = alignments(V, W, image_global(V, params), text_global(W, params), params)
    return saf_readout(nodes, params, params['filter_norm/mean'][0], params['filter_norm/variance'][0])


# NAAF


def naaf_attention(V, W, *, threshold, softmax_temperature=20.0):
    """Weights [n, R] of the matched regions (rows of sum 1, or 0 if none is above the threshold) and of relevance."""
    matched = []
    for w in W:
        above = [np.dot(w, v) - threshold for v in V]
        exps = np.array([np.exp(softmax_temperature * a) if a > 0 else 0.0 for a in above])
        matched.append(exps / (np.sum(exps) + 1e-8))
    return np.array(matched), attention(W, V, softmax_temperature=softmax_temperature)


def naaf_score(V, W, *, threshold, smooth, softmax_temperature=20.0):
    """NAAF on unit vectors. `smooth`: whether a word is negative is decided by its caption's words like it (test time).

    Smoothing decides only; what is added is the word's own M_w, so that a decision against its sign adds a positive
    number. Words and regions are not normalised here, f_w is not divided by |word|.
    """
    matched, relevance = naaf_attention(V, W, threshold=threshold, softmax_temperature=softmax_temperature)
    best = [max(np.dot(w, v) - threshold for v in V) for w in W]
    total = 0.0
    for k, w in enumerate(W):
        decision = best[k]
        if smooth:
            decision = np.dot(softmax(np.array([5 * np.dot(w, other) for other in W])), best)
        negative = best[k] if decision < 0 else 0.0
        attended = weighted_sum(matched[k], V)
        feature = np.dot(w, attended) / max(np.linalg.norm(attended), 1e-8)
        total += negative + feature + sum(relevance[k][r] * np.dot(w, V[r]) for r in range(len(V)))
    return total / len(W)


# IMRAM


def imram_attention(queries, contexts, params, direction, *, steps, softmax_temperature):
    """Weights [Lq, Lc] of each step; between steps a gate mixes each query with what it attended to."""
    weights = [attention(queries, contexts, softmax_temperature=softmax_temperature)]
    while len(weights) < steps:
        updated = []
        for k in range(len(queries)):
            both = np.concatenate([queries[k], weighted_sum(weights[-1][k], contexts)])
            gate = sigmoid(linear(params, f'{direction}_gate', both))
            updated.append(gate * queries[k] + (1 - gate) * np.tanh(linear(params, f'{direction}_output', both)))
        queries = np.array(updated)
        weights.append(attention(queries, contexts, softmax_temperature=softmax_temperature))
    return weights


def imram_score(V, W, params, *, directions, **options):
    """IMRAM, in [-2 steps, 2 steps]: the cosines of all steps are of the first queries, not of the updated ones."""
    total = 0.0
    for direction in directions:
        queries, contexts = (W, V) if direction == 't2i' else (V, W)
        for weights in imram_attention(queries, contexts, params, direction, **options):
            relevance = [cosine(queries[k], weighted_sum(weights[k], contexts)) for k in range(len(queries))]
            total += sum(relevance) / len(queries)
    return total


# DBL's baseline network


def dbl_score(V, W, params):
    """The baseline of DBL, in (-1, 1). The paper has neither the norm of the mean nor that of the attended vectors."""
    mean = l2norm(average(local_alignments(V, W, params)))
    return np.tanh(linear(params, 'score', mean)[0])
