"""Scores with cross-attention models in PyTorch like their published code: in a loop over captions.

    python -m benchmarks torch_loops --model saf --images 1000 --texts 5000
    python -m benchmarks torch_loops --model saf --captions data/f30k_precomp/test_caps.txt

The baseline for the compiled models of jitm, which tests/parity compares with it, and a part of `torch_networks`.
Layers have the names of the authors' checkpoints. Each caption, cut to its true length, is scored with all images of a
shard at once; attended vectors are materialized; captions are processed in a Python loop. Inputs are unit vectors,
regions [I, R, D] and words [T, L, D], so encoders are excluded on both sides. Requires PyTorch, in the extra `parity`:
pip install -e '.[parity]'.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.lengths import caption_lengths
from benchmarks.results import Row
from jitm.errors import UserError

unit = partial(functional.normalize, dim=-1, eps=1e-8)


def attention(query: Tensor, context: Tensor, smooth: float) -> Tensor:
    """Returns SCAN's weights [..., Q, C]: leaky cosines, normalized over the query, softmax over the context."""
    return torch.softmax(smooth * unit(functional.leaky_relu(context @ query.mT, 0.1)).mT, -1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Returns the cosine over the last axis; faster than functional.cosine_similarity."""
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return (a * b).sum(-1) / norms.clamp(min=1e-8)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Returns a linear layer with Xavier initialization and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class CaptionLoop(nn.Module):
    """Scores images and captions; subclasses define the scores of one caption."""

    def encode(self, regions: Tensor) -> tuple[Tensor, ...]:
        """Returns the arguments of `score_caption` that all captions share, from regions [I, R, D]."""
        return (regions,)

    def score_caption(self, words: Tensor, regions: Tensor) -> Tensor:
        """Scores regions [I, R, D] with the words [I, n, D] of one caption, repeated for all images: [I]."""
        raise NotImplementedError

    def captions(self, regions: Tensor, words: Tensor, lengths: Tensor) -> Iterator[Tensor]:
        """Yields the scores [I] of each caption."""
        images = self.encode(regions)
        for caption, length in zip(words, lengths.tolist(), strict=True):
            yield self.score_caption(caption[:length].expand(len(regions), -1, -1), *images)

    def forward(self, regions: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        """Scores regions [I, R, D] with words [T, L, D], or a list of [L, D], of lengths [T]: [I, T]."""
        return torch.stack(list(self.captions(regions, words, lengths)), 1)


class SCAN(CaptionLoop):
    """Stacked cross attention (Lee et al. 2018) with LogSumExp, or with the mean where `lse` is None."""

    def __init__(self, direction: str, smooth: float, lse: float | None = None) -> None:
        super().__init__()
        self.direction, self.smooth, self.lse = direction, smooth, lse

    def score_caption(self, words: Tensor, regions: Tensor) -> Tensor:
        """Scores with words that attend to regions (t2i), or regions that attend to words (i2t)."""
        query, context = (words, regions) if self.direction == 't2i' else (regions, words)
        attended = torch.bmm(attention(query, context, self.smooth), context)
        relevance = cosine(query, attended)
        return torch.logsumexp(self.lse * relevance, 1) / self.lse if self.lse else relevance.mean(1)


class BFAN(CaptionLoop):
    """Bidirectional focal attention (Liu et al. 2019): fragments below the weighted average are dropped."""

    def __init__(self, focal: str, smooth: float = 20.0) -> None:
        super().__init__()
        self.focal, self.smooth = focal, smooth

    def relevance(self, query: Tensor, context: Tensor) -> Tensor:
        """Returns the mean cosine [I] of the query's elements and their attended vectors after refocusing."""
        weights = attention(query, context, self.smooth)
        with torch.no_grad():
            trust = weights.sqrt() if self.focal == 'prob' else torch.ones_like(weights)
            trusted = weights * trust.sum(-1, keepdim=True) > (weights * trust).sum(-1, keepdim=True)
        weights = weights * trusted
        weights = weights / weights.sum(-1, keepdim=True)
        return cosine(query, torch.bmm(weights, context)).mean(1)

    def score_caption(self, words: Tensor, regions: Tensor) -> Tensor:
        """Returns the sum of both directions."""
        return self.relevance(words, regions) + self.relevance(regions, words)


class NAAF(CaptionLoop):
    """Negative-aware attention (Zhang et al. 2022) with a constant threshold; differs in eval mode."""

    def __init__(self, threshold: float = 0.0, smooth: float = 20.0) -> None:
        super().__init__()
        self.threshold, self.smooth = threshold, smooth

    def score_caption(self, words: Tensor, regions: Tensor) -> Tensor:
        """Returns the mean over words of the mismatch and the two matching terms."""
        scores = torch.bmm(words, regions.transpose(1, 2))
        margins = scores - self.threshold
        best = margins.amax(-1)
        decision = best
        if not self.training:
            caption = words[0]
            decision = best @ torch.softmax(5 * caption @ caption.T, -1).T
        mismatch = best * (decision < 0)

        weights = torch.where(margins > 0, torch.exp(self.smooth * margins), 0.0)
        attended = torch.bmm(weights / (weights.sum(-1, keepdim=True) + 1e-8), regions)
        match = (words * attended).sum(-1) / torch.linalg.vector_norm(attended, dim=-1).clamp(min=1e-8)

        relative = functional.normalize(functional.leaky_relu(scores, 0.1), dim=1, eps=1e-8)
        relevance = (scores * torch.softmax(self.smooth * relative, -1)).sum(-1)
        return (mismatch + match + relevance).mean(1)


def align(layer: nn.Linear, a: Tensor, b: Tensor) -> Tensor:
    """Returns the normalized difference of vectors [..., D]: [..., M]."""
    return unit(layer((a - b).pow(2)))


class DBL(CaptionLoop):
    """The baseline network of deep boosting learning (Diao et al. 2024): the mean of the words' alignments."""

    def __init__(self, dim: int, similarity_dim: int = 256, smooth: float = 9.0) -> None:
        super().__init__()
        self.smooth = smooth
        self.sim_tran_w, self.sim_eval_w = linear(dim, similarity_dim), linear(similarity_dim, 1)

    def score_caption(self, words: Tensor, regions: Tensor) -> Tensor:
        """Returns the tanh of a linear function of the mean alignment."""
        attended = unit(attention(words, regions, self.smooth) @ regions)
        return torch.tanh(self.sim_eval_w(unit(align(self.sim_tran_w, attended, words).mean(1)))).squeeze(1)


class SelfAttention(nn.Module):
    """Global vectors of SGRAF: the sum of several vectors, weighted by their similarity with the mean."""

    def __init__(self, dim: int, elements: int | None, dropout: float) -> None:
        super().__init__()
        norms = (nn.BatchNorm1d(elements), nn.BatchNorm1d(dim)) if elements else (nn.Identity(), nn.Identity())
        self.embedding_local, self.embedding_global = (
            nn.Sequential(linear(dim, dim), norm, nn.Tanh(), nn.Dropout(dropout)) for norm in norms
        )
        self.embedding_common = nn.Sequential(linear(dim, 1))

    def forward(self, vectors: Tensor) -> Tensor:
        """Aggregates [N, E, D]: [N, D]."""
        common = self.embedding_local(vectors) * self.embedding_global(vectors.mean(1)).unsqueeze(1)
        return unit((torch.softmax(self.embedding_common(common), 1) * vectors).sum(1))


class GraphReasoning(nn.ModuleList):
    """SGR: message passing between alignments on a full graph; returns the global alignment."""

    def __init__(self, dim: int, steps: int = 3) -> None:
        names = 'graph_query_w', 'graph_key_w', 'sim_graph_w'
        super().__init__(nn.ModuleDict({name: linear(dim, dim) for name in names}) for _ in range(steps))

    def forward(self, alignments: Tensor) -> Tensor:
        """Aggregates [I, 1 + n, M]: [I, M]."""
        for step in self:
            edges = torch.softmax(step['graph_query_w'](alignments) @ step['graph_key_w'](alignments).mT, -1)
            alignments = torch.relu(step['sim_graph_w'](edges @ alignments))
        return alignments[:, 0]


class AttentionFiltration(nn.Module):
    """SAF: a weighted mean of the alignments. Batch statistics come from a single caption."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn_sim_w, self.bn = linear(dim, 1), nn.BatchNorm1d(1)

    def forward(self, alignments: Tensor) -> Tensor:
        """Aggregates [I, 1 + n, M]: [I, M]."""
        weights = torch.sigmoid(self.bn(self.attn_sim_w(alignments).transpose(1, 2)))
        weights = functional.normalize(weights, p=1, dim=-1, eps=1e-8)
        return unit((weights @ alignments).squeeze(1))


class SGRAF(CaptionLoop):
    """Similarity graph reasoning or attention filtration (Diao et al. 2021)."""

    def __init__(self, dim: int, regions: int, reasoning: str, similarity_dim: int = 256, dropout: float = 0.4) -> None:
        super().__init__()
        self.smooth, self.reasoning = 9.0, f'{reasoning}_module'
        self.v_global_w, self.t_global_w = (SelfAttention(dim, slots, dropout) for slots in (regions, None))
        self.sim_tranloc_w, self.sim_tranglo_w = (linear(dim, similarity_dim) for _ in range(2))
        self.add_module(self.reasoning, {'SGR': GraphReasoning, 'SAF': AttentionFiltration}[reasoning](similarity_dim))
        self.sim_eval_w = linear(similarity_dim, 1)

    def encode(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns regions and the global vector of each image."""
        return regions, self.v_global_w(regions)

    def score_caption(self, words: Tensor, regions: Tensor, images: Tensor) -> Tensor:
        """Returns the sigmoid of a linear function of the aggregated alignments of words and of the global vectors."""
        attended = unit(attention(words, regions, self.smooth) @ regions)
        local = align(self.sim_tranloc_w, attended, words)
        global_similarity = align(self.sim_tranglo_w, images, self.t_global_w(words[:1]))
        reasoned = self.get_submodule(self.reasoning)(torch.cat([global_similarity.unsqueeze(1), local], 1))
        return torch.sigmoid(self.sim_eval_w(reasoned)).squeeze(1)


# Functions (dimensions, regions per image) -> model.
LOOPS = {
    'scan_t2i': lambda dim, regions: SCAN('t2i', smooth=9.0, lse=6.0),
    'scan_i2t': lambda dim, regions: SCAN('i2t', smooth=4.0, lse=5.0),
    'bfan_equal': lambda dim, regions: BFAN('equal'),
    'bfan_prob': lambda dim, regions: BFAN('prob'),
    'sgr': lambda dim, regions: SGRAF(dim, regions, 'SGR'),
    'saf': lambda dim, regions: SGRAF(dim, regions, 'SAF'),
    'naaf': lambda dim, regions: NAAF(),
    'dbl': lambda dim, regions: DBL(dim),
}


@torch.inference_mode()
def score(model: CaptionLoop, regions: Tensor, words: Tensor, lengths: Tensor, shard: int = 128) -> Tensor:
    """Scores in eval mode, `shard` images at a time: [I, T]."""
    model.eval()
    return torch.cat([model(part, words, lengths) for part in regions.split(shard)])


def pairs_per_second(
    model: CaptionLoop, regions: Tensor, words: Tensor, lengths: Tensor, shard: int, seconds: float
) -> float:
    """Scores captions until the time limit, after ten captions of warm-up."""

    @torch.inference_mode()
    def captions() -> Iterator[int]:
        while True:
            for part in regions.split(shard):
                yield from (len(scores) for scores in model.captions(part, words, lengths))

    model.eval()
    done = captions()
    for _ in range(10):
        next(done)
    pairs, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        pairs += next(done)
    return pairs / passed


def matmul_gflops(size: int = 2048, products: int = 5) -> float:
    """Measures the rate of float32 products of two square matrices, which shows whether the machine is idle."""
    a, b, times = torch.rand(size, size), torch.rand(size, size), []
    for _ in range(products + 1):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times[1:]) / 1e9


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--model', choices=LOOPS, required=True)
    parser.add_argument('--images', type=int, default=1000)
    parser.add_argument('--texts', type=int, default=5000)
    parser.add_argument('--dim', type=int, default=1024)
    parser.add_argument('--regions', type=int, default=36)
    parser.add_argument('--captions', type=Path, help='a text file, one caption per line; random lengths if not given')
    parser.add_argument('--shard', type=int, default=128, help='images scored at once')
    parser.add_argument('--seconds', type=float, default=30.0)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures a model."""
    torch.manual_seed(0)
    lengths = torch.from_numpy(caption_lengths(args.captions, args.texts))
    if len(lengths) < args.texts:
        raise UserError(f'{args.captions} has {len(lengths)} captions: give --texts {len(lengths)} or fewer')
    model = LOOPS[args.model](args.dim, args.regions)
    regions = unit(torch.randn(args.images, args.regions, args.dim))
    words = unit(torch.randn(args.texts, int(lengths.max()), args.dim))
    yield {
        'model': args.model,
        'threads': torch.get_num_threads(),
        'pairs/s': pairs_per_second(model, regions, words, lengths, args.shard, args.seconds),
        'MiB': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        'GFLOP/s of a product': matmul_gflops(),
    }
