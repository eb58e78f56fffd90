"""Networks of image-text matching as one writes them in PyTorch, on padded batches, for `python -m benchmarks peers`.

They follow the structure of the released code: packed sequences for GRUs, one product for all scores of vectors, and
for SCAN and its successors the loop over captions of `torch_loops`. A network is made from the config's `model`, the
number of words and the number of features; its parameters have the names of the authors' checkpoints.

A batch is a dict of arrays: `regions` [I, R, F] and `counts` [I], `locations` [I, R, 7] or `pixels` [I, H, W, 3] of
images, `ids` [T, L] and `lengths` [T] of captions, and `image_index` [I], by which pairs of the same image are known.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import torch_loops as loops
from benchmarks.torch_encoders import GPO, Batch, Graph, Regions, Section, Words, read_last, unit


class Ranking(NamedTuple):
    """Scores [Q, C] of the candidates of each query, and which of them are its match and its negatives, bool [Q, C]."""

    scores: Tensor
    positives: Tensor
    negatives: Tensor


class Network(nn.Module):
    """Ranks the captions of a batch for each of its images, and the images for each caption.

    Subclasses define `encode_image` and `encode_text`, which map a batch to a tuple of arrays, and `score`.
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.model = nn.ModuleList(modules)

    @property
    def weights(self) -> nn.Module:
        """The module whose parameters have the published names."""
        return self

    def score(self, images: tuple[Tensor, ...], texts: tuple[Tensor, ...]) -> Tensor:
        """Scores every image with every caption by the inner products of vectors: [I, T]."""
        return images[0] @ texts[0].T

    def to_compile(self) -> list[tuple[nn.Module, str]]:
        """Returns the functions that `torch.compile` makes faster, if any: modules and names."""
        return [(self, 'encode_image'), (self, 'encode_text'), (self, 'score')]

    def rank(self, batch: Batch, same_image: str) -> tuple[Ranking, Ranking]:
        """Ranks the batch in both directions; other pairs of the same image are negatives, or 'ignored'."""
        scores = self.score(self.encode_image(batch), self.encode_text(batch))
        positives, index = torch.eye(len(scores), dtype=torch.bool), batch['image_index']
        negatives = index[:, None] != index if same_image == 'ignored' else ~positives
        return Ranking(scores, positives, negatives), Ranking(scores.T, positives, negatives)


# Each side is one vector.


class VSE(Network):
    """VSE++: the mean of the regions, and the last state of the words (Faghri et al., 2018)."""

    def __init__(self, model: Section, words: int, features: int) -> None:
        dim = model['embed_dim']
        super().__init__(Regions(features, dim), Words(model['text'], words, dim))

    def encode_image(self, batch: Batch) -> tuple[Tensor]:
        """Encodes images, all of which have R regions, as [I, D]."""
        return (unit(self.model[0](batch).mean(1)),)

    def encode_text(self, batch: Batch) -> tuple[Tensor]:
        """Encodes captions as [T, D]."""
        return (unit(self.model[1](batch, read_last)),)


class PooledVSE(Network):
    """VSE-infinity and RVSE: GPO pools both sides (Chen et al., 2021; Li et al., 2023)."""

    words = Words

    def __init__(self, model: Section, words: int, features: int) -> None:
        dim = model['embed_dim']
        images = Regions(features, dim, model['image']['mlp'])
        super().__init__(images, self.words(model['text'], words, dim))
        for module in self.model:
            module.gpool = GPO()

    def encode_image(self, batch: Batch) -> tuple[Tensor]:
        """Encodes images as [I, D]."""
        return (unit(self.model[0].gpool(self.model[0](batch), batch['counts'])),)

    def encode_text(self, batch: Batch) -> tuple[Tensor]:
        """Encodes captions as [T, D]."""
        return (unit(self.model[1].gpool(self.model[1](batch), batch['lengths'])),)


class VSRN(Network):
    """VSRN on Flickr30K: a GRU reads the regions that graphs have related (Li et al., 2019); without its captioner."""

    def __init__(self, model: Section, words: int, features: int) -> None:
        dim, text = model['embed_dim'], {'word_dim': model['word_dim'], 'bidirectional': False, 'dropout': 0.0}
        super().__init__(Regions(features, dim), Words(text, words, dim))
        self.graphs = [f'Rs_GCN_{n + 1}' for n in range(model['graph_layers'])]
        for name in self.graphs:
            self.model[0].add_module(name, Graph(dim))
        self.model[0].img_rnn, self.model[0].bn = nn.GRU(dim, dim, batch_first=True), nn.BatchNorm1d(dim)

    def encode_image(self, batch: Batch) -> tuple[Tensor]:
        """Encodes images, all of which have R regions, as [I, D]."""
        images = self.model[0]
        regions = images(batch)
        for name in self.graphs:
            regions = images.get_submodule(name)(regions)
        return (unit(images.bn(images.img_rnn(unit(regions, 1))[1][0])),)

    def encode_text(self, batch: Batch) -> tuple[Tensor]:
        """Encodes captions as [T, D]."""
        return (unit(self.model[1](batch, read_last)),)


# Words and regions attend to each other.


class CrossAttention(Network):
    """Scores unit vectors of regions and of words by a loop over captions."""

    gru = 'rnn'

    def __init__(self, similarity: loops.CaptionLoop, model: Section, words: int, features: int) -> None:
        dim = model['embed_dim']
        super().__init__(Regions(features, dim), Words(model['text'], words, dim, self.gru), similarity)

    def encode_image(self, batch: Batch) -> tuple[Tensor]:
        """Encodes images as [I, R, D]."""
        return (unit(self.model[0](batch)),)

    def encode_text(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Encodes captions as [T, L, D], and returns their lengths."""
        return unit(self.model[1](batch)), batch['lengths']

    def to_compile(self) -> list[tuple[nn.Module, str]]:
        """Returns the encoders and what each iteration of the loop calls; the loop would be unrolled."""
        similarity = self.model[2]
        return [(self, 'encode_image'), (self, 'encode_text'), (similarity, 'encode'), (similarity, 'score_caption')]

    def score(self, images: tuple[Tensor, ...], texts: tuple[Tensor, ...]) -> Tensor:
        """Scores every image with every caption, one caption at a time: [I, T]."""
        return self.model[2](*images, *texts)


class SCAN(CrossAttention):
    """SCAN (Lee et al., 2018)."""

    def __init__(self, model: Section, *sizes: int) -> None:
        lse = model['lambda_lse'] if model['aggregation'] == 'LogSumExp' else None
        super().__init__(loops.SCAN(model['direction'], model['lambda_softmax'], lse), model, *sizes)


class BFAN(CrossAttention):
    """BFAN (Liu et al., 2019)."""

    def __init__(self, model: Section, *sizes: int) -> None:
        super().__init__(loops.BFAN(model['focal'], model['lambda_softmax']), model, *sizes)


class SGRAF(CrossAttention):
    """SGR or SAF (Diao et al., 2021), or DBL's network, without global vectors (Diao et al., 2024)."""

    gru = 'cap_rnn'

    def __init__(self, model: Section, *sizes: int) -> None:
        dim, similarity_dim, image_whole = model['embed_dim'], model['alignment_dim'], model['image_whole']
        if image_whole:
            reasoning = {'alignment.GraphReasoning': 'SGR', 'alignment.AttentionFiltration': 'SAF'}
            name = reasoning[model['reasoning']['name']]
            similarity = loops.SGRAF(dim, image_whole['slots'], name, similarity_dim, image_whole['dropout'])
        else:
            similarity = loops.DBL(dim, similarity_dim)
        super().__init__(similarity, model, *sizes)


class NAAF(CrossAttention):
    """NAAF (Zhang et al., 2022), which mines the threshold of each caption from those before it."""

    def __init__(self, model: Section, *sizes: int) -> None:
        super().__init__(loops.NAAF(smooth=model['lambda_softmax']), model, *sizes)
        self.minimum_words, self.alpha, self.opt = model['minimum_words'], model['alpha'], nn.Module()
        self.opt.register_buffer('thres', torch.tensor(0.0))
        self.opt.register_buffer('thres_safe', torch.tensor(0.0))

    def score(self, images: tuple[Tensor, ...], texts: tuple[Tensor, ...]) -> Tensor:
        """Scores every image with every caption, and in training moves the thresholds: [I, T]."""
        similarity, (regions,), (words, lengths) = self.model[2], images, texts
        if not self.training:
            similarity.threshold = self.opt.thres_safe
            return similarity(regions, words, lengths)
        thresholds, columns, mined = regions.new_zeros(2), [], regions.new_zeros(2, 0)
        for n, (caption, length) in enumerate(zip(words, lengths.tolist(), strict=True)):
            similarity.threshold, caption = thresholds[0], caption[:length]
            column = similarity.score_caption(caption.expand(len(regions), -1, -1), regions)
            columns.append(column)
            with torch.no_grad():
                if column.argmax() == n:
                    rows = torch.stack([torch.tensor(n), column.argmin()])
                    mined = torch.cat([mined, (caption @ regions[rows].mT).amax(-1)], dim=1)
                if mined.shape[1] > self.minimum_words:
                    thresholds = move_thresholds(thresholds, mined, self.alpha)
        self.opt.thres, self.opt.thres_safe = thresholds
        return torch.stack(columns, dim=1)


def move_thresholds(thresholds: Tensor, words: Tensor, alpha: float) -> Tensor:
    """Moves the thresholds of NAAF to where the density of matches is alpha times that of mismatches.

    Args:
      thresholds: The threshold and the safe one.
      words: The similarities [2, N] of the words that match and of those that do not.
      alpha: The ratio of the two normal densities.
    """
    (p, n), (sp, sn) = words.mean(1), words.std(1)
    a, b = sp**2 - sn**2, 2 * (p * sn**2 - n * sp**2)
    c = (n * sp) ** 2 - (p * sn) ** 2 + 2 * (sp * sn) ** 2 * torch.log(sn / (alpha * sp))
    if b**2 <= 4 * a * c:
        return thresholds
    new = torch.stack([(torch.sqrt(b**2 - 4 * a * c) - b) / (2 * a), p - 3 * sp])
    return 0.7 * torch.where((new >= 0) & (new <= 1), new, 0) + 0.3 * thresholds
