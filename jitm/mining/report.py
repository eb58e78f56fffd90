"""Statistics of mined negatives."""

import numpy as np

from jitm.data.candidates import expected_rank
from jitm.data.splits import Split
from jitm.evaluation.tables import table
from jitm.mining.state import MiningState

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RANKS = (1, 5, 20, 60, 300, 1000)
EXAMPLES = 5
ROUNDING = 1e-5  # scores summed in another order differ by less


def summarize(state: MiningState, split: Split) -> str:
    """Summarizes the similarities of positives and of mined negatives.

    A mined negative that scores above every positive of its query may be a false negative.

    Returns:
      A table of quantiles by rank, two percentages per direction, and the likely false negatives with the largest gap.
    """
    best_text = np.full(split.num_images, -np.inf, np.float32)
    np.maximum.at(best_text, split.image_of_text, state.positives)
    rows, shares = [_quantiles('positives', state.positives)], []
    for direction, (scores, _), positive in (('i2t', state.i2t, best_text), ('t2i', state.t2i, state.positives)):
        ranks = [rank for rank in RANKS if rank < scores.shape[1]] + [scores.shape[1]]
        rows += [_quantiles(f'{direction} rank {rank}', scores[:, rank - 1]) for rank in ranks]
        above = scores > positive[:, None] + ROUNDING
        shares.append(
            f'{direction}: {100 * above.mean():.1f} % of the mined negatives are above every positive of their query, '
            f'and {100 * above[:, 0].mean():.1f} % of the queries have one'
        )
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


def _quantiles(name: str, scores: np.ndarray) -> list[str]:
    return [name, *(f'{x:.3f}' for x in np.quantile(scores, QUANTILES))]
