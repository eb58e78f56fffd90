"""The PyTorch side of `python -m benchmarks peers`: trains and evaluates a network of `torch_networks`.

Losses are computed on the whole matrix of scores, as in the released code. Evaluation follows VSE++ and SCAN: it
encodes 128 items at a time, scores all captions with 128 images at a time, and sorts the candidates of each query. The
scripts also encode each image once for each of its captions, which is left out.
"""

import importlib
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import workers
from benchmarks.torch_encoders import Batch
from benchmarks.torch_networks import Network, Ranking
from benchmarks.workers import Answer

SHARD = 128  # items that are encoded, and images that are scored, at a time


def hinges(ranking: Ranking, margin: float) -> Tensor:
    """Returns [margin + s_n - s_p]_+ of each negative n, and 0 elsewhere: [Q, C]."""
    matches = ranking.scores[ranking.positives][:, None]
    return (margin + ranking.scores - matches).clamp(min=0).masked_fill(~ranking.negatives, 0)


def max_of_hinges(ranking: Ranking, margin: float) -> Tensor:
    """The hinge of the hardest negative (Faghri et al., 2018)."""
    return hinges(ranking, margin).amax(1)


def mean_of_hinges(ranking: Ranking, margin: float) -> Tensor:
    """The mean of all hinges (Chen et al., 2020b)."""
    return hinges(ranking, margin).sum(1) / ranking.negatives.sum(1)


def selective_hard_negative(ranking: Ranking, margin: float, epsilon: float) -> Tensor:
    """The first of these if the hardest negative scores unlike the match, else the second (Li et al., 2023)."""
    hardest = ranking.scores.masked_fill(~ranking.negatives, -torch.inf).amax(1)
    far = (hardest - ranking.scores[ranking.positives]).abs() > epsilon
    return torch.where(far, max_of_hinges(ranking, margin), mean_of_hinges(ranking, margin))


def relative_max(ranking: Ranking, anchor: Ranking, margin: float = 0.2) -> Tensor:
    """The hinge of how far a match exceeds its hardest negative beyond an anchor (Diao et al., 2024)."""
    ahead = ranking.scores - anchor.scores.detach()
    hardest = ahead.masked_fill(~ranking.negatives, -torch.inf).amax(1)
    return (margin + hardest - ahead[ranking.positives]).clamp(min=0)


def softmax_contrastive(ranking: Ranking, temperature: float = 1.0) -> Tensor:
    """The cross-entropy of logits (Radford et al., 2021)."""
    logits = (ranking.scores / temperature).masked_fill(~(ranking.positives | ranking.negatives), -torch.inf)
    return F.cross_entropy(logits, ranking.positives.int().argmax(1), reduction='none')


LOSSES = {
    loss.__name__: loss
    for loss in (max_of_hinges, mean_of_hinges, selective_hard_negative, relative_max, softmax_contrastive)
}
OF_TERM = (
    'loss',
    'weight',
    'reduction',
    'start_epoch',
    'end_epoch',
)  # the other keys of a term are its loss' arguments


def value(term: Mapping[str, Any], rankings: tuple[Ranking, ...], anchors: tuple[Ranking, ...]) -> Tensor:
    """Returns the value of a term, of both directions."""
    loss: Callable = LOSSES[term['loss'].rpartition('.')[2]]
    arguments = {key: argument for key, argument in term.items() if key not in OF_TERM}
    if loss is relative_max:
        values = [loss(*scores, **arguments) for scores in zip(rankings, anchors, strict=True)]
    else:
        values = [loss(ranking, **arguments) for ranking in rankings]
    return term['weight'] * sum(x.sum() if term['reduction'] == 'sum' else x.mean() for x in values)


class Trainer:
    """Trains networks together, each with its optimizer, on the batches of a folder.

    Attributes:
      networks: The networks by name, the target last.
    """

    def __init__(self, folder: Path):
        """Makes the networks, with the parameters in the folder."""
        self._folder, self._described = folder, pickle.loads((folder / 'torch.pkl').read_bytes())
        self.networks = {name: self._load(name) for name in self._described['members']}
        options = self._described['optimizer']
        self._clip_norm, rate, decay = (options[key] for key in ('clip_norm', 'learning_rate', 'weight_decay'))
        self._optimizers = {
            name: torch.optim.AdamW(network.parameters(), rate, weight_decay=decay, fused=True)
            for name, network in self.networks.items()
        }

    def _load(self, name: str) -> Network:
        described = self._described
        module, _, kind = described['network'].rpartition('.')
        network = getattr(importlib.import_module(module), kind)(*described['sizes'], **described['options'])
        tensors = {key: torch.from_numpy(x) for key, x in np.load(self._folder / f'{name}.npz').items()}
        absent, unknown = network.weights.load_state_dict(tensors, strict=False)
        assert not unknown, unknown
        for key in absent:  # parameters without effect, which jitm leaves out
            network.weights.state_dict()[key].zero_()
        return network

    def read(self, name: str | int) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch, or of a split."""
        with np.load(self._folder / f'{name}.npz') as arrays:
            return dict(arrays)

    def step(self, batch: Batch) -> Tensor:
        """Trains on a batch, and returns the loss of the target."""
        described = self._described
        rankings = {name: network.rank(batch, described['same_image']) for name, network in self.networks.items()}
        losses = {}
        for name, (terms, anchor) in described['members'].items():
            losses[name] = sum(value(term, rankings[name], rankings.get(anchor)) for term in terms)
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        sum(losses.values()).backward()
        for name, optimizer in self._optimizers.items():
            torch.nn.utils.clip_grad_norm_(self.networks[name].parameters(), self._clip_norm)
            optimizer.step()
        return losses['target'].detach()


def as_tensors(arrays: Mapping[str, np.ndarray]) -> Batch:
    """Returns tensors, with features in single precision."""
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    return tensors | {name: x.float() for name, x in tensors.items() if x.is_floating_point()}


def encode(encoder: Callable[[Batch], tuple[Tensor, ...]], arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
    """Encodes the items of a split, `SHARD` at a time, each shard padded to its longest caption."""
    count, parts = len(next(iter(arrays.values()))), []
    for start in range(0, count, SHARD):
        shard = {name: x[start : start + SHARD] for name, x in arrays.items()}
        if 'ids' in shard:
            shard['ids'] = shard['ids'][:, : shard['lengths'].max()]
        parts.append(encoder(as_tensors(shard)))
    return tuple(concatenate(leaves) for leaves in zip(*parts, strict=True))


def concatenate(leaves: tuple[Tensor, ...]) -> Tensor:
    """Concatenates the encodings of shards, which may be padded to different lengths."""
    longest = max(leaf.shape[1:2] for leaf in leaves)
    rows = [F.pad(x, (0, 0, 0, longest[0] - x.shape[1])) if x.ndim == 3 else x for x in leaves]
    return torch.cat(rows)


def recalls(scores: np.ndarray, image_of_text: np.ndarray) -> list[float]:
    """Returns R@1, R@5 and R@10 in percent of both directions; sorts the candidates of each query."""
    ranks: tuple[list, list] = [], []
    for image, row in enumerate(scores):
        ranks[0].append(np.flatnonzero(image_of_text[np.argsort(-row)] == image)[0])
    for image, column in zip(image_of_text, scores.T, strict=True):
        ranks[1].append(np.flatnonzero(np.argsort(-column) == image)[0])
    return [100 * float(np.mean(np.array(ranks_of_way) < k)) for ranks_of_way in ranks for k in (1, 5, 10)]


@torch.inference_mode()
def evaluate(network: Network, images: dict[str, np.ndarray], texts: dict[str, np.ndarray]) -> float:
    """Returns the sum of the recalls."""
    network.eval()
    image_of_text = texts.pop('image_of_text')
    encoded, words = encode(network.encode_image, images), encode(network.encode_text, texts)
    shards = zip(*(leaf.split(SHARD) for leaf in encoded), strict=True)
    scores = torch.cat([network.score(shard, words) for shard in shards])
    return sum(recalls(scores.numpy(), image_of_text))


def first_items(arrays: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Returns the first items of each array."""
    return {name: x[:count] for name, x in arrays.items()}


class Side:
    """Does the commands: a number trains on a batch, `evaluate` evaluates, and `evaluate part` evaluates a shard.

    The result is the loss, or rsum.
    """

    def __init__(self, folder: Path, mode: str):
        """Makes the networks of a folder, with compiled functions in the mode `compile`."""
        self._trainer = Trainer(folder)
        self._compiles = mode == 'compile'
        if self._compiles:
            for network in self._trainer.networks.values():
                compile_functions(network)

    def __call__(self, work: int | str) -> Answer:
        """Does a command."""
        before = self._compilations()
        if isinstance(work, int):
            arrays = self._trainer.read(work)
            start = time.perf_counter()
            number = self._trainer.step(as_tensors(arrays)).item()
        else:
            images = self._trainer.read('images')
            texts = self._trainer.read('texts')
            if work == 'evaluate part':
                images = first_items(images, SHARD)
                texts = first_items(texts, (texts['image_of_text'] < SHARD).sum())
            start = time.perf_counter()
            number = evaluate(self._trainer.networks['target'], images, texts)
        seconds = time.perf_counter() - start
        return Answer(seconds, number, self._compilations() > before)

    def _compilations(self) -> int:
        if not self._compiles:
            return 0
        from torch._dynamo.utils import counters  # takes memory, which would count

        return counters['stats']['unique_graphs']


def compile_functions(network: Network) -> None:
    """Compiles the functions of a network, for inputs of any size."""
    for module, name in network.to_compile():
        setattr(module, name, torch.compile(getattr(module, name), dynamic=True))


def make(folder: Path, cores: int, mode: str = 'eager') -> workers.Work:
    """Returns what trains and evaluates."""
    torch.set_num_threads(cores)
    torch.manual_seed(0)
    return Side(folder, mode)


if __name__ == '__main__':
    sys.modules['torchvision'] = None  # transformers works without it, and fails if it was built for another PyTorch
    workers.main(make)
