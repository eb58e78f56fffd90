"""The PyTorch side of `python -m benchmarks device`: trains again and again on one batch, which lies on the GPU."""

import sys
import time
from pathlib import Path

import torch

from benchmarks import workers
from benchmarks.device_found import torch_device, use_first_gpu
from benchmarks.peer_torch import Trainer, as_tensors
from benchmarks.torch_encoders import Batch
from benchmarks.workers import Answer


class Side:
    """Does the commands: a number takes so many steps, and `memory` returns the peak of the GPU in bytes.

    The result of steps is the loss of the last one. The first command also makes the networks.
    """

    def __init__(self, folder: Path, device: str, precision: str):
        """Computes on a device: products in float32, in TF32 of float32, or in bfloat16 where autocast does."""
        torch.set_default_device(device)
        torch.backends.cuda.matmul.allow_tf32 = precision == 'TF32'
        torch.backends.cudnn.allow_tf32 = precision == 'TF32'
        self._autocast = torch.autocast(device, torch.bfloat16, enabled=precision == 'bfloat16')
        self._folder = folder
        self._device = device
        self._trainer = None

    def _place(self, batch: Batch) -> Batch:
        """Moves a batch to the device, without lengths: packing sequences reads them on the CPU."""
        return {name: x if name == 'lengths' else x.to(self._device) for name, x in batch.items()}

    def __call__(self, work: int | str) -> Answer:
        """Does a command."""
        if work == 'memory':
            return Answer(0.0, self._peak(), compiled=False)
        first = self._trainer is None
        if first:
            self._trainer = Trainer(self._folder)
            self._batch = self._place(as_tensors(self._trainer.read(0)))
        start = time.perf_counter()
        for _ in range(work):
            with self._autocast:  # which keeps copies of the parameters in bfloat16 until its end
                loss = self._trainer.step(self._batch)
        self._wait()
        return Answer(time.perf_counter() - start, loss.item(), compiled=first)

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self._device == 'cuda' else 0

    def _wait(self) -> None:
        if self._device == 'cuda':
            torch.cuda.synchronize()


def make(folder: Path, cores: int, precision: str) -> workers.Work:
    """Returns what takes steps on one GPU, or on the CPU if PyTorch finds none."""
    use_first_gpu()
    torch.set_num_threads(cores)
    torch.manual_seed(0)
    return Side(folder, torch_device()[1], precision)


if __name__ == '__main__':
    sys.modules['torchvision'] = None  # as in `peer_torch`
    workers.main(make)
