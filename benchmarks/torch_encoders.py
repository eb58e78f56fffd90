"""Encoders of images and captions as one writes them in PyTorch, on padded batches, for `torch_networks`.

Parameters have the names of the authors' checkpoints.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Batch = Mapping[str, Tensor]
Section = Mapping[str, Any]  # a section of the config


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """Divides vectors by their norm."""
    return F.normalize(x, dim=dim)


def valid(lengths: Tensor, size: int) -> Tensor:
    """Returns which of `size` positions are within the lengths [N]: bool [N, size]."""
    return torch.arange(size) < lengths.to(torch.get_default_device())[:, None]


def read(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Returns the states after each element of sequences [N, L, D], averaged over the directions: [N, L, H]."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=x.shape[1])
    return states.unflatten(-1, (-1, gru.hidden_size)).mean(-2)


def read_last(gru: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
    """Returns the state after the last element of sequences [N, L, D], in one direction: [N, H]."""
    return gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0]


class Words(nn.Module):
    """Embeds words and reads them with a GRU, which has a name."""

    def __init__(self, text: Section, words: int, dim: int, gru: str = 'rnn') -> None:
        super().__init__()
        self.embed, self.dropout, self.gru = nn.Embedding(words, text['word_dim']), nn.Dropout(text['dropout']), gru
        self.add_module(gru, nn.GRU(text['word_dim'], dim, batch_first=True, bidirectional=text['bidirectional']))

    def forward(self, batch: Batch, reader: Callable[..., Tensor] = read) -> Tensor:
        """Returns what a reader, `read` or `read_last`, makes of the captions."""
        return reader(self.get_submodule(self.gru), self.dropout(self.embed(batch['ids'])), batch['lengths'])


class MLP(nn.Module):
    """W_2 relu(BN(W_1 x)) (VSE-infinity)."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, dim // 2), nn.Linear(dim // 2, dim)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(dim // 2)])

    def forward(self, x: Tensor) -> Tensor:
        """Maps regions, those that pad images included, [I, R, F]."""
        return self.layers[1](F.relu(self.bns[0](self.layers[0](x.flatten(0, 1))))).view(*x.shape[:2], -1)


class Regions(nn.Module):
    """Maps each region to a vector; an MLP of it (RVSE) or of the region (VSE-infinity) may be added."""

    def __init__(self, features: int, dim: int, mlp: str = 'none') -> None:
        super().__init__()
        self.fc, self.kind = nn.Linear(features, dim), mlp
        if mlp != 'none':
            self.mlp = MLP(features if mlp == 'residual_on_input' else dim, dim)

    def forward(self, batch: Batch) -> Tensor:
        """Returns [I, R, D]."""
        regions = batch['regions']
        linear = self.fc(regions)
        if self.kind == 'none':
            return linear
        return linear + self.mlp(regions if self.kind == 'residual_on_input' else linear)


class GPO(nn.Module):
    """Sorts the values of each dimension and weighs them by their rank (VSE-infinity; Chen et al., 2021)."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Pools [N, K, D] to [N, D]."""
        size, dim = x.shape[1], self.gru.input_size
        angles = torch.arange(size)[:, None] * 1e4 ** -torch.arange(0, 1, 2 / dim)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).expand(len(x), -1, -1)
        outside = ~valid(lengths, size)
        scores = self.linear(read(self.gru, positions, lengths)).squeeze(-1) / 0.1
        weights = torch.softmax(scores.masked_fill(outside, -torch.inf), dim=1)
        ordered = x.masked_fill(outside[..., None], -torch.inf).sort(dim=1, descending=True).values
        return torch.sum(weights[..., None] * ordered.masked_fill(outside[..., None], 0), dim=1)


class Graph(nn.Module):
    """V + BN(W R g(V)) with R = theta(V) phi(V)' / N (VSRN; Li et al., 2019)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.g, self.theta, self.phi = (nn.Linear(dim, dim) for _ in range(3))
        self.W = nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim))

    def forward(self, v: Tensor) -> Tensor:
        """Relates the regions [I, R, D] of each image."""
        mixed = self.theta(v) @ self.phi(v).mT @ self.g(v) / v.shape[1]
        return v + self.W(mixed.flatten(0, 1)).view_as(v)
