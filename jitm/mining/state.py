"""The progress of a mining job, in memory and on disk: the highest-scoring candidates so far.

Lists are pairs of scores float32 [N, h] and ids int32 [N, h], in descending order of the scores; unfilled entries have
the score -inf and the id `NO_CANDIDATE`. Ties are ordered by ascending id, as in a full stable sort.
"""

import dataclasses
import zipfile
import zlib
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm.data.splits import Split
from jitm.files import replacing

Lists = tuple[np.ndarray, np.ndarray]

NO_CANDIDATE = np.iinfo(np.int32).max  # sorts after every id


def merge(best: tuple[chex.Array, chex.Array], scores: chex.Array, ids: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Merges M candidates into each of N lists.

    Args:
      best: The lists [N, h].
      scores: float32 [N, M], -inf for ids that are not candidates.
      ids: int32 [M], ascending, the same for all lists; or [N, M] in any order.
    """
    top_h = best[0].shape[1]
    if ids.ndim == 1:
        scores, positions = lax.top_k(scores, min(top_h, len(ids)))
        ids = ids[positions]
    ids = jnp.where(scores > -jnp.inf, ids, NO_CANDIDATE)
    negated, ids = lax.sort(
        (jnp.concatenate([-best[0], -scores], axis=1), jnp.concatenate([best[1], ids], axis=1)), num_keys=2
    )
    return -negated[:, :top_h], ids[:, :top_h]


@dataclasses.dataclass
class MiningState:
    """The lists that a process has found so far.

    Attributes:
      done: The number of blocks that it has finished.
      i2t: The lists [I, h] of texts.
      t2i: The lists [T, h'] of images.
      positives: float32 [T], the score of each text with its own image; -inf if not scored yet.
    """

    done: int
    i2t: Lists
    t2i: Lists
    positives: np.ndarray

    @classmethod
    def initial(cls, split: Split, top_h_texts: int, top_h_images: int) -> 'MiningState':
        """Returns the state before the first block, with empty lists."""
        i2t, t2i = (split.num_images, top_h_texts), (split.num_texts, top_h_images)
        lists = [(np.full(size, -np.inf, np.float32), np.full(size, NO_CANDIDATE, np.int32)) for size in (i2t, t2i)]
        return cls(0, *lists, np.full(split.num_texts, -np.inf, np.float32))

    def save(self, path: Path, job: str) -> None:
        """Writes the state and the hash of its job; replaces the file atomically.

        Raises:
          UserError: if it cannot be written.
        """
        lists = {'i2t': self.i2t, 't2i': self.t2i}
        arrays = {f'{name}_{n}': array for name, pair in lists.items() for n, array in enumerate(pair)}
        with replacing(path) as file:
            np.savez(file, job=job, done=self.done, positives=self.positives, **arrays)

    @classmethod
    def load(cls, path: Path, job: str) -> 'MiningState | None':
        """Reads the state that `save` wrote; None if it is missing, damaged or of another job."""
        try:
            with path.open('rb') as whole, np.load(whole) as file:
                if str(file['job']) != job:
                    return None
                lists = [(file[f'{name}_0'], file[f'{name}_1']) for name in ('i2t', 't2i')]
                return cls(int(file['done']), *lists, file['positives'])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None

    def join(self, other: 'MiningState') -> 'MiningState':
        """Merges the lists of two processes."""
        pairs = (self.i2t, other.i2t), (self.t2i, other.t2i)
        lists = [jax.device_get(jax.jit(merge)(mine, *others)) for mine, others in pairs]
        return MiningState(self.done, *lists, np.maximum(self.positives, other.positives))
