"""Cross-attention scores as loops over images, captions, words and regions in float64, to hold fast kernels against.

An image is V [R, D], its real regions only, in their slots 0 .. R-1; a caption is W [n, D], its real words only, with
<start> and <end>. Only NAAF's formulas take unit vectors for granted. Attention weights are always [n, R], word by
region, whichever side asks.

Parameters are one flat dict, D features, M numbers in an alignment, R region slots (`random_params` makes one):

    image_local, image_global, text_local, text_global             /kernel [D, D]  /bias [D]
    image_common, text_common                                      /kernel [D, 1]  /bias [1]
    image_local_norm                                               /scale /bias /mean /variance [R]
    image_global_norm                                              /scale /bias /mean /variance [D]
    local_alignment, global_alignment                              /kernel [D, M]  /bias [M]
    graph_0_query, graph_0_key, graph_0_update, same for 1 and 2   /kernel [M, M]  /bias [M]     SGR
    filter                                                         /kernel [M, 1]  /bias [1]     SAF
    filter_norm                                                    /scale /bias /mean /variance [1]
    score                                                          /kernel [M, 1]  /bias [1]

DBL's network reads local_alignment and score. Dropout is left out everywhere.
"""

import numpy as np

SCAN_TEMPERATURES = {'t2i': 9.0, 'i2t': 4.0}
SCAN_LSE_TEMPERATURES = {'t2i': 6.0, 'i2t': 5.0}  # i2t has 5 on Flickr30K, 20 on COCO


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


def normalize_raw(row):
    """Step 2 of SCAN's attention for one context vector: its dot products with all queries [Lq] -> [Lq]."""
    return l2norm(np.array([leaky_relu(x) for x in row]))


def attention(queries, contexts, *, softmax_temperature):
    """Steps 1 to 3 of SCAN's attention: queries [Lq, D], contexts [Lc, D] -> weights [Lq, Lc], rows of sum 1."""
    normalized = [normalize_raw([np.dot(context, query) for query in queries]) for context in contexts]
    weights = []
    for q in range(len(queries)):
        weights.append(softmax(softmax_temperature * np.array([row[q] for row in normalized])))
    return np.array(weights)


# SCAN


def scan_attention(V, W, *, direction='t2i', softmax_temperature=None):
    """Weights [n, R]: t2i: of the regions for each word, rows of sum 1; i2t: of the words for each region, columns."""
    options = {'softmax_temperature': softmax_temperature or SCAN_TEMPERATURES[direction]}
    return attention(W, V, **options) if direction == 't2i' else attention(V, W, **options).T


def scan_score(V, W, *, direction='t2i', softmax_temperature=None, aggregation='LogSumExp', lse_temperature=None):
    """SCAN. Temperatures that are None are the published ones: 9 and 6 in t2i, 4 and 5 (Flickr30K) in i2t."""
    if lse_temperature is None:
        lse_temperature = SCAN_LSE_TEMPERATURES[direction]
    weights = scan_attention(V, W, direction=direction, softmax_temperature=softmax_temperature)
    if direction == 't2i':
        relevance = [cosine(W[k], weighted_sum(weights[k], V)) for k in range(len(W))]
    else:
        relevance = [cosine(V[r], weighted_sum(weights[:, r], W)) for r in range(len(V))]
    if aggregation == 'LogSumExp':
        return np.log(sum(np.exp(lse_temperature * r) for r in relevance)) / lse_temperature
    if aggregation == 'Mean':
        return sum(relevance) / len(relevance)
    return {'Max': max, 'Sum': sum}[aggregation](relevance)


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


def bfan_attention(V, W, *, focal='equal', softmax_temperature=20.0):
    """Weights after focusing, t2i [n, R] (rows of sum 1 or 0) and i2t [n, R] (columns of sum 1 or 0)."""
    t2i = attention(W, V, softmax_temperature=softmax_temperature)
    i2t = attention(V, W, softmax_temperature=softmax_temperature)
    return np.array([focal_weights(x, focal) for x in t2i]), np.array([focal_weights(x, focal) for x in i2t]).T


def bfan_score(V, W, *, focal='equal', softmax_temperature=20.0):
    """BFAN, in [-2, 2]. A vector with nothing to attend to attends to the zero vector, and adds 0 to the mean."""
    t2i, i2t = bfan_attention(V, W, focal=focal, softmax_temperature=softmax_temperature)
    words = [cosine(W[k], weighted_sum(t2i[k], V)) for k in range(len(W))]
    regions = [cosine(V[r], weighted_sum(i2t[:, r], W)) for r in range(len(V))]
    return sum(words) / len(words) + sum(regions) / len(regions)


# SGRAF


def linear(params, name, x):
    return x @ params[f'{name}/kernel'] + params[f'{name}/bias']


def batch_norm(params, name, x, mean, variance, channel=...):
    scaled = (x - mean) / np.sqrt(variance + 1e-5)
    return scaled * params[f'{name}/scale'][channel] + params[f'{name}/bias'][channel]


def updated(running, batch, momentum=0.1):
    return (1 - momentum) * running + momentum * batch


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


def image_globals_in_training(images, params):
    """The global vectors [I, D] of a batch with its own statistics, and the four running statistics after it.

    The statistics of a region slot are over the images that have it times D; a slot that no image has keeps its own.
    The variance is biased where it normalises and unbiased where it is stored.
    """
    projected = [[linear(params, 'image_local', v) for v in V] for V in images]
    guides = np.array([linear(params, 'image_global', average(V)) for V in images])
    local = [[] for _ in images]
    running = {
        f'{name}/{key}': params[f'{name}/{key}'].copy()
        for name in ('image_local_norm', 'image_global_norm')
        for key in ('mean', 'variance')
    }
    for r in range(max(len(V) for V in images)):
        having = [i for i in range(len(images)) if r < len(images[i])]
        values = np.concatenate([projected[i][r] for i in having])
        for i in having:
            x = batch_norm(params, 'image_local_norm', projected[i][r], np.mean(values), np.var(values), r)
            local[i].append(np.tanh(x))
        for key, statistic in (('mean', np.mean(values)), ('variance', np.var(values, ddof=1))):
            name = f'image_local_norm/{key}'
            running[name][r] = updated(running[name][r], statistic)
    for key, statistic in (('mean', np.mean(guides, axis=0)), ('variance', np.var(guides, axis=0, ddof=1))):
        name = f'image_global_norm/{key}'
        running[name] = updated(running[name], statistic)
    vectors = []
    for i in range(len(images)):
        guide = batch_norm(params, 'image_global_norm', guides[i], np.mean(guides, axis=0), np.var(guides, axis=0))
        vectors.append(self_attention(images[i], local[i], np.tanh(guide), params, 'image_common'))
    return np.array(vectors), running


def text_global(W, params):
    """The caption's global vector [D]: as the image's, without normalisation."""
    local = [np.tanh(linear(params, 'text_local', w)) for w in W]
    guide = np.tanh(linear(params, 'text_global', average(W)))
    return self_attention(W, local, guide, params, 'text_common')


def local_alignments(V, W, params, *, softmax_temperature=9.0):
    """Alignment of each word with what it attends to: l2norm(Linear((ctx_k - word_k)^2)), [n, M].

    Its weights, those of SGR, SAF and DBL, are `scan_attention(V, W)` with the same temperature.
    """
    weights = attention(W, V, softmax_temperature=softmax_temperature)
    alignments = []
    for k in range(len(W)):
        attended = l2norm(weighted_sum(weights[k], V))
        alignments.append(l2norm(linear(params, 'local_alignment', (attended - W[k]) ** 2)))
    return np.array(alignments)


def global_alignment(image_vector, text_vector, params):
    """Alignment of two global vectors [D]: l2norm(Linear((v - t)^2)), [M]."""
    return l2norm(linear(params, 'global_alignment', (image_vector - text_vector) ** 2))


def alignments(V, W, image_vector, text_vector, params, **options):
    """The nodes of SGR and SAF [1 + n, M]: the global alignment, then the local ones."""
    return np.array([global_alignment(image_vector, text_vector, params), *local_alignments(V, W, params, **options)])


def sgr_readout(nodes, params):
    """SGR's score of the alignments [1 + n, M]: three steps of reasoning, then the global node."""
    for step in range(3):
        queries = [linear(params, f'graph_{step}_query', node) for node in nodes]
        keys = [linear(params, f'graph_{step}_key', node) for node in nodes]
        new = []
        for query in queries:
            edges = softmax(np.array([np.dot(query, key) for key in keys]))
            new.append(np.maximum(linear(params, f'graph_{step}_update', weighted_sum(edges, nodes)), 0))
        nodes = np.array(new)
    return sigmoid(linear(params, 'score', nodes[0])[0])


def saf_weights(nodes, params, mean, variance):
    """SAF's weights of the alignments [1 + n, M] -> [1 + n], given the statistics of the normalisation."""
    logits = [linear(params, 'filter', node)[0] for node in nodes]
    gates = [sigmoid(batch_norm(params, 'filter_norm', x, mean, variance, 0)) for x in logits]
    return l1norm(np.array(gates))


def saf_readout(nodes, params, mean, variance):
    """SAF's score of the alignments [1 + n, M]."""
    filtered = l2norm(weighted_sum(saf_weights(nodes, params, mean, variance), nodes))
    return sigmoid(linear(params, 'score', filtered)[0])


def sgr_score(V, W, params, *, softmax_temperature=9.0):
    """SGR in evaluation, in (0, 1)."""
    options = {'softmax_temperature': softmax_temperature}
    return sgr_readout(alignments(V, W, image_global(V, params), text_global(W, params), params, **options), params)


def saf_score(V, W, params, *, softmax_temperature=9.0):
    """SAF in evaluation, in (0, 1)."""
    options = {'softmax_temperature': softmax_temperature}
    nodes = alignments(V, W, image_global(V, params), text_global(W, params), params, **options)
    return saf_readout(nodes, params, params['filter_norm/mean'][0], params['filter_norm/variance'][0])


def saf_batch(images, captions, params, *, image_vectors=None, softmax_temperature=9.0):
    """SAF in training: scores [I, T], and filter_norm's running mean [1] and variance [1] after the last caption.

    Caption j is normalised with the statistics of its logits, over I x (1 + n_j). The global vectors of the images are
    `image_vectors` [I, D], or by default those of training, normalised with the statistics of the batch.
    """
    options = {'softmax_temperature': softmax_temperature}
    if image_vectors is None:
        image_vectors, _ = image_globals_in_training(images, params)
    scores = np.zeros((len(images), len(captions)))
    running_mean, running_variance = params['filter_norm/mean'], params['filter_norm/variance']
    for j, W in enumerate(captions):
        text_vector = text_global(W, params)
        nodes = [
            alignments(V, W, v, text_vector, params, **options) for V, v in zip(images, image_vectors, strict=True)
        ]
        logits = [linear(params, 'filter', node)[0] for image_nodes in nodes for node in image_nodes]
        for i in range(len(images)):
            scores[i, j] = saf_readout(nodes[i], params, np.mean(logits), np.var(logits))
        running_mean = updated(running_mean, np.mean(logits))
        running_variance = updated(running_variance, np.var(logits, ddof=1))
    return scores, running_mean, running_variance


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


def naaf_boundary(positives, negatives, threshold, safe_threshold, alpha=2.0):
    """Thresholds from the best similarities of matched and mismatched words, before the moving average.

    Where the discriminant is not positive, the ones given stay. Both become 0 outside [0, 1]. Undefined for a standard
    deviation of 0.
    """
    mu_p, mu_n = np.mean(positives), np.mean(negatives)
    sd_p, sd_n = np.std(positives, ddof=1), np.std(negatives, ddof=1)
    a = sd_p**2 - sd_n**2
    b = 2 * (mu_p * sd_n**2 - mu_n * sd_p**2)
    c = (mu_n * sd_p) ** 2 - (mu_p * sd_n) ** 2 + 2 * (sd_p * sd_n) ** 2 * np.log(sd_n / (alpha * sd_p) + 1e-8)
    if b**2 - 4 * a * c > 0:
        threshold = (-b + np.sqrt(b**2 - 4 * a * c)) / (2 * a + 1e-10)
        safe_threshold = mu_p - 3 * sd_p
    return tuple(t if 0 <= t <= 1 else 0.0 for t in (threshold, safe_threshold))


def naaf_thresholds(images, captions, *, alpha=2.0, minimum=200, softmax_temperature=20.0):
    """The thresholds over a batch, caption i of image i: used for each caption [T], and left at the end (two numbers).

    Choices where the released rule is not fully described: both thresholds start a batch at 0, which is what a count
    below the minimum sets. Caption i is scored with the threshold that caption i - 1 left (training rule), and then
    takes part in mining: its words are collected if the first of the best images is image i, with those of the first
    of the worst images. Once more than `minimum` words are collected, every caption, itself collected or not, moves
    both thresholds: 0.7 new + 0.3 old, where the new one has been set to 0 if outside [0, 1].
    """
    positives, negatives, used = [], [], []
    threshold = safe_threshold = 0.0
    options = {'softmax_temperature': softmax_temperature}
    for i, W in enumerate(captions):
        used.append(threshold)
        scores = [naaf_score(V, W, threshold=threshold, smooth=False, **options) for V in images]
        if np.argmax(scores) == i:
            easiest = np.argmin(scores)
            for w in W:
                positives.append(max(np.dot(w, v) for v in images[i]))
                negatives.append(max(np.dot(w, v) for v in images[easiest]))
        if len(positives) > minimum:
            new, new_safe = naaf_boundary(positives, negatives, threshold, safe_threshold, alpha)
            threshold = 0.7 * new + 0.3 * threshold
            safe_threshold = 0.7 * new_safe + 0.3 * safe_threshold
    return np.array(used), threshold, safe_threshold


# DBL's baseline network


def dbl_score(V, W, params, *, softmax_temperature=9.0):
    """The baseline of DBL, in (-1, 1). The paper has neither the norm of the mean nor that of the attended vectors."""
    options = {'softmax_temperature': softmax_temperature}
    mean = l2norm(average(local_alignments(V, W, params, **options)))
    return np.tanh(linear(params, 'score', mean)[0])


# For tests


def random_params(rng, features, size, slots):
    """Parameters of SGR, SAF and DBL, none of them at its initial 0 or 1."""
    shapes = {
        **{f'{side}_{part}': (features, features) for side in ('image', 'text') for part in ('local', 'global')},
        **{f'{side}_common': (features, 1) for side in ('image', 'text')},
        **{f'{part}_alignment': (features, size) for part in ('local', 'global')},
        **{f'graph_{step}_{part}': (size, size) for step in range(3) for part in ('query', 'key', 'update')},
        **{'filter': (size, 1), 'score': (size, 1)},
    }
    params = {}
    for name, shape in shapes.items():
        params[f'{name}/kernel'] = rng.normal(size=shape) * 1.5 / np.sqrt(shape[0])
        params[f'{name}/bias'] = rng.normal(size=shape[1]) * 0.3
    for name, channels in (('image_local_norm', slots), ('image_global_norm', features), ('filter_norm', 1)):
        params[f'{name}/scale'] = rng.uniform(0.5, 1.5, channels)
        params[f'{name}/bias'] = rng.normal(size=channels) * 0.3
        params[f'{name}/mean'] = rng.normal(size=channels) * 0.3
        params[f'{name}/variance'] = rng.uniform(0.5, 1.5, channels)
    return params


def score_matrix(score, images, captions, *args, **options):
    """Scores [I, T] of every image with every caption, one pair at a time."""
    return np.array([[score(V, W, *args, **options) for W in captions] for V in images])


def numerical_gradient(f, arrays, step=1e-6):
    """Central differences of the number f(*arrays): a list like `arrays`, whose items are arrays or dicts of arrays.

    f may use hard decisions (BFAN's mask, NAAF's signs): they are constants as long as no step crosses one.
    """

    def copied(item):
        return {k: copied(x) for k, x in item.items()} if isinstance(item, dict) else np.array(item, np.float64)

    moved = [copied(item) for item in arrays]

    def gradient(item):
        if isinstance(item, dict):
            return {k: gradient(x) for k, x in item.items()}
        slopes = np.zeros_like(item)
        for index in np.ndindex(item.shape):
            kept = item[index]
            item[index] = kept + step
            above = f(*moved)
            item[index] = kept - step
            below = f(*moved)
            item[index] = kept
            slopes[index] = (above - below) / (2 * step)
        return slopes

    return [gradient(item) for item in moved]
