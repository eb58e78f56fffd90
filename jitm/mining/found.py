"""What a mining job has found so far, in memory and on disk."""

import dataclasses
import zipfile
from pathlib import Path

import jax
import numpy as np

from jitm.data.splits import Split
from jitm.files import replacing
from jitm.mining.search import merge, nothing

Lists = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass
class Found:
    """What a process has found so far.

    Attributes:
      done: how many of its blocks it has been through.
      i2t: lists [I, h] of texts, see `jitm.mining.search`.
      t2i: lists [T, h'] of images.
      positives: float32 [T], the score of each text with its own image; -inf where it has not been seen.
    """

    done: int
    i2t: Lists
    t2i: Lists
    positives: np.ndarray

    @classmethod
    def nothing(cls, split: Split, top_h_texts: int, top_h_images: int) -> 'Found':
        """Before the first block."""
        lists = nothing(split.num_images, top_h_texts), nothing(split.num_texts, top_h_images)
        return cls(0, *lists, np.full(split.num_texts, -np.inf, np.float32))

    def save(self, path: Path, job: str) -> None:
        """Keeps this, and which job it is of, in place of what was kept before."""
        with replacing(path) as file:
            np.savez(file, job=job, done=self.done, positives=self.positives, **self._arrays())

    def _arrays(self) -> dict[str, np.ndarray]:
        lists = {'i2t': self.i2t, 't2i': self.t2i}
        return {f'{name}_{n}': array for name, pair in lists.items() for n, array in enumerate(pair)}

    @classmethod
    def load(cls, path: Path, job: str) -> 'Found | None':
        """What `save` kept; None if it is of another job, damaged or not there."""
        try:
            with path.open('rb') as whole, np.load(whole) as file:
                if str(file['job']) != job:
                    return None
                lists = [(file[f'{name}_0'], file[f'{name}_1']) for name in ('i2t', 't2i')]
                return cls(int(file['done']), *lists, file['positives'])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def join(self, other: 'Found') -> 'Found':
        """What two processes have found together."""

        def joined(mine: Lists, theirs: Lists) -> Lists:
            return jax.device_get(jax.jit(merge)(mine, *theirs))

        return Found(
            self.done,
            joined(self.i2t, other.i2t),
            joined(self.t2i, other.t2i),
            np.maximum(self.positives, other.positives),
        )
