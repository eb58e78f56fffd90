"""What a mining job has found, in words and numbers."""

import numpy as np

from jitm.analysis.tables import table
from jitm.data.splits import Split
from jitm.mining.found import Found

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
RANKS = (1, 5, 20, 60, 300, 1000)
EXAMPLES = 5
ROUNDING = 1e-5  # equal scores differ by less, added up in another order


def summarize(found: Found, split: Split) -> str:
    """Describes the similarities of positives and of mined negatives.

    A mined negative above every positive of its query is suspected to be none.

    Args:
      found: all lists.
      split: what was mined.

    Returns:
      A table of quantiles by rank, two shares for each direction, and the suspects that are furthest above.
    """
    best_text = np.full(split.num_images, -np.inf, np.float32)
    np.maximum.at(best_text, split.image_of_text, found.positives)
    lines, shares = [_quantiles('positives', found.positives)], []
    for direction, (scores, _), positive in (('i2t', found.i2t, best_text), ('t2i', found.t2i, found.positives)):
        ranks = [rank for rank in RANKS if rank < scores.shape[1]] + [scores.shape[1]]
        lines += [_quantiles(f'{direction} rank {rank}', scores[:, rank - 1]) for rank in ranks]
        above = scores > positive[:, None] + ROUNDING
        shares.append(
            f'{direction}: {100 * above.mean():.1f} % of the mined negatives are above every positive of their query, '
            f'and {100 * above[:, 0].mean():.1f} % of the queries have one'
        )
    gaps = found.t2i[0][:, 0] - found.positives
    suspects = []
    for text in np.argsort(-gaps, kind='stable')[:EXAMPLES]:
        if gaps[text] > ROUNDING:
            image = found.t2i[1][text, 0]
            other = split.captions[split.texts_of_image[0][split.texts_of_image[1][image]]]
            suspects.append(f'  {gaps[text]:+.3f}  {split.captions[text]!r}  image {split.image_ids[image]}: {other!r}')
    suspected = ['suspected false negatives, by how far they are above:', *suspects] if suspects else []
    header = ['similarity of', *(f'{100 * q:g} %' for q in QUANTILES)]
    return '\n'.join([table(header, lines), *shares, *suspected])


def _quantiles(name: str, scores: np.ndarray) -> list[str]:
    return [name, *(f'{x:.3f}' for x in np.quantile(scores, QUANTILES))]
