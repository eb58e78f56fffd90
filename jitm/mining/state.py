"""The progress of a mining job, in memory and on disk: the highest-scoring candidates so far, and statistics of them.

Lists are pairs of scores float32 [N, h] and ids int32 [N, h], in descending order of the scores; unfilled entries have
the score -inf and the id `NO_CANDIDATE`. Ties are ordered by ascending id, as in a full stable sort.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm.data.pairs.mined_lists import ROUNDING, expected_rank
from jitm.data.splits import Split
from jitm.files.outputs import Job
from jitm.pages.tables import table

Lists = tuple[np.ndarray, np.ndarray]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RANKS = (1, 5, 20, 60, 300, 1000)
EXAMPLES = 5
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

        def empty(*shape: int) -> Lists:
            return np.full(shape, -np.inf, np.float32), np.full(shape, NO_CANDIDATE, np.int32)

        i2t = empty(split.num_images, top_h_texts)
        t2i = empty(split.num_texts, top_h_images)
        return cls(0, i2t, t2i, np.full(split.num_texts, -np.inf, np.float32))

    def save(self, job: Job, process: int) -> None:
        """Saves the state of a process; a UserError if it cannot be written."""
        job.save(
            process,
            done=self.done,
            positives=self.positives,
            i2t_scores=self.i2t[0],
            i2t_ids=self.i2t[1],
            t2i_scores=self.t2i[0],
            t2i_ids=self.t2i[1],
        )

    @classmethod
    def load(cls, job: Job, process: int) -> 'MiningState | None':
        """Returns the state that a process saved; None if it is missing or damaged."""
        part = job.load(process)
        if part is None:
            return None
        i2t = (part['i2t_scores'], part['i2t_ids'])
        t2i = (part['t2i_scores'], part['t2i_ids'])
        return cls(int(part['done']), i2t, t2i, part['positives'])

    def join(self, shard: 'MiningState') -> 'MiningState':
        """Merges the lists of two processes."""
        i2t = jax.device_get(jax.jit(merge)(self.i2t, *shard.i2t))
        t2i = jax.device_get(jax.jit(merge)(self.t2i, *shard.t2i))
        return MiningState(self.done, i2t, t2i, np.maximum(self.positives, shard.positives))


def summarize(state: MiningState, split: Split) -> str:
    """Summarizes the similarities of positives and of mined negatives.

    A mined negative that scores above every positive of its query may be a false negative.

    Returns:
      A table of quantiles by rank, two percentages per direction, and the likely false negatives with the largest gap.
    """
    best_text = np.full(split.num_images, -np.inf, np.float32)
    np.maximum.at(best_text, split.image_of_text, state.positives)
    scores_of = {'positives': state.positives}
    shares = []
    for direction, (scores, _), positive in (('i2t', state.i2t, best_text), ('t2i', state.t2i, state.positives)):
        top_h = scores.shape[1]
        for rank in sorted({min(rank, top_h) for rank in (*RANKS, top_h)}):
            scores_of[f'{direction} rank {rank}'] = scores[:, rank - 1]
        above = scores > positive[:, None] + ROUNDING
        shares.append(
            f'{direction}: {100 * above.mean():.1f} % of the mined negatives are above every positive of their query, '
            f'and {100 * above[:, 0].mean():.1f} % of the queries have one'
        )
    rows = [[name, *map('{:.3f}'.format, np.quantile(scores, QUANTILES))] for name, scores in scores_of.items()]
    header = ['similarity of', *(f'{100 * q:g} %' for q in QUANTILES)]
    return '\n'.join([table(header, rows), *shares, *_false_negatives(state, split)])


def compare_with_batch(split: Split, batch_size: int, top_h_texts: int, top_h_images: int) -> str:
    """Compares the number of mined negatives with the rank of the hardest negative in a batch, in one line."""
    texts, images = (expected_rank(count, batch_size) for count in (split.num_texts, split.num_images))
    return (
        f'the hardest negative in a batch of {batch_size} has an expected rank of {texts:.0f} among the captions and '
        f'{images:.0f} among the images: mined negatives can help where h, here {top_h_texts} and {top_h_images}, is '
        'far below (Chen et al. 2020)'
    )


def _false_negatives(state: MiningState, split: Split) -> list[str]:
    """Returns lines on the texts whose best negative image scores highest above their own image."""
    gaps = state.t2i[0][:, 0] - state.positives
    texts, starts = split.texts_of_image
    lines = []
    for text in np.argsort(-gaps, kind='stable')[:EXAMPLES]:
        if gaps[text] > ROUNDING:
            image = state.t2i[1][text, 0]
            caption = split.captions[texts[starts[image]]]
            lines.append(f'  {gaps[text]:+.3f}  {split.captions[text]!r}  image {split.image_ids[image]}: {caption!r}')
    return ['likely false negatives, by their gap to the positive:', *lines] if lines else []
