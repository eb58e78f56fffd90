"""The training step of jitm against PyTorch in float64, from the same weights and on the same batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jitm import configs
from jitm.configs import common
from jitm.devices import parallel
from jitm.importers import systems, tensors
from jitm.training.setup import Setup, set_up
from jitm.training.step import TrainState
from tests.parity.bounds import assert_within

pytestmark = pytest.mark.needs('torch', 'transformers')
F = torch.nn.functional

EMBED_DIM, WORD_DIM, FEATURES = 16, 8, 6  # the last one of the data
RATE, DECAY_EPOCHS, CLIP_NORM, WEIGHT_DECAY = 1e-3, 3, 2.0, 0.01


class Encoders(torch.nn.Module):
    """A linear layer for regions and a GRU for words, with the names of the authors' checkpoints."""

    def __init__(self, num_words: int, bidirectional: bool):
        super().__init__()
        images = {'fc': torch.nn.Linear(FEATURES, EMBED_DIM)}
        texts = {
            'embed': torch.nn.Embedding(num_words, WORD_DIM),
            'rnn': torch.nn.GRU(WORD_DIM, EMBED_DIM, batch_first=True, bidirectional=bidirectional),
        }
        self.model = torch.nn.ModuleList([torch.nn.ModuleDict(images), torch.nn.ModuleDict(texts)])

    def forward(self, regions, ids, lengths):
        """Maps [I, R, F] and T captions to the regions [I, R, D], the states after each word, and the last states."""
        images, texts = self.model
        words = torch.nn.utils.rnn.pack_padded_sequence(texts['embed'](ids), lengths, True, enforce_sorted=False)
        states, last = texts['rnn'](words)
        return images['fc'](regions), torch.nn.utils.rnn.unpack_sequence(states), last


def score_vsepp(regions, states, last):
    """The cosine of the mean region and the last state (Faghri et al., 2018)."""
    return F.normalize(regions.mean(1), dim=1) @ F.normalize(last[0], dim=1).T


def score_scan(regions, states, last):
    """SCAN t2i AVG (Lee et al., 2018): the mean cosine of each word with the regions that it attends to."""
    regions, columns = F.normalize(regions, dim=2), []
    for caption in states:
        words = F.normalize(caption.unflatten(1, (2, EMBED_DIM)).mean(1), dim=1)
        similarity = F.normalize(F.leaky_relu(regions @ words.T, 0.1), dim=2)
        attended = F.softmax(9 * similarity, dim=1).mT @ regions
        columns.append(F.cosine_similarity(attended, words, dim=2).mean(1))
    return torch.stack(columns, dim=1)


def sum_then_max_of_hinges(scores, epoch):
    """One epoch of the sum of hinges, then those of the hardest negatives (Faghri et al., 2018, eq. 5 and 6)."""
    matches = scores.diagonal()[:, None]
    is_match = torch.eye(len(scores), dtype=torch.bool)
    costs = [F.relu(0.2 + x - matches).masked_fill(is_match, 0) for x in (scores, scores.T)]
    return sum(cost.amax(1).sum() if epoch else cost.sum() for cost in costs)


def cross_entropy(scores, epoch):
    """The mean of both directions (CLIP)."""
    return sum(F.cross_entropy(x / 0.07, torch.arange(len(x))) for x in (scores, scores.T)) / 2


SYSTEMS = {  # name in docs/notes/parity.md -> preset, its epochs of the sum of hinges, scores and loss in PyTorch
    'VSE++': ('vsepp:vsepp,f30k', 1, score_vsepp, sum_then_max_of_hinges),
    'SCAN': ('scan:t2i,avg,softmax,f30k', 0, score_scan, cross_entropy),
}


def make_setup(preset: str, sum_epochs: int, folder: Path) -> Setup:
    """Makes a small model of a preset, with 5 steps per epoch."""
    config = configs.load(preset)
    if sum_epochs:
        common.sum_first(config, sum_epochs)
    common.set_schedule(config, epochs=4, learning_rate=RATE, decay_epochs=DECAY_EPOCHS)
    config.data.root, config.data.dev_images, config.batch_size = str(folder), 4, 8
    config.model.embed_dim, config.model.text.word_dim = EMBED_DIM, WORD_DIM
    config.optimizer.weight_decay, config.optimizer.clip_norm = WEIGHT_DECAY, CLIP_NORM
    return set_up(config.to_dict())


def export(system: str, setup: Setup, state: TrainState) -> dict[str, np.ndarray]:
    """Returns the parameters with the names and shapes of PyTorch."""
    return tensors.export(state.members['target'].variables, systems.SYSTEMS[system].names)


def train(setup: Setup, state: TrainState) -> tuple[list[float], TrainState]:
    """Trains with jitm: the loss at each step, and the last state."""
    losses = []
    for step in range(setup.total_steps):
        state, metrics = setup.train_step(state, parallel.put_batch(setup.make_batch(step)))
        losses.append(float(metrics['target/loss']))
    return losses, state


def train_in_torch(
    setup: Setup, tensors: dict[str, np.ndarray], score: Callable, loss: Callable
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Trains with PyTorch from these parameters: the loss at each step, and the last parameters."""
    model = Encoders(len(setup.data.vocabulary), setup.plan.config['model']['text']['bidirectional']).double()
    model.load_state_dict({name: torch.tensor(tensor) for name, tensor in tensors.items()})
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    steps_per_epoch = setup.pipeline.steps_per_epoch
    losses = []
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, DECAY_EPOCHS * steps_per_epoch)
    for step in range(setup.total_steps):
        batch = setup.make_batch(step)
        arrays = batch.images.regions.astype(float), batch.texts.ids, batch.texts.lengths
        value = loss(score(*model(*map(torch.tensor, arrays))), step // steps_per_epoch)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses, dict(model.state_dict())


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products take many times as long with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize('name', SYSTEMS)
def test_training(precomp_folder, name):
    preset, sum_epochs, score, loss = SYSTEMS[name]
    system = preset.partition(':')[0]
    setup = make_setup(preset, sum_epochs, precomp_folder)
    state = setup.initial_state()
    expected_losses, expected = train_in_torch(setup, export(system, setup, state), score, loss)
    losses, state = train(setup, state)
    assert_within(f'{name}: loss over 20 steps', losses, expected_losses)
    assert_within(f'{name}: parameters after 20 steps', export(system, setup, state), expected)
