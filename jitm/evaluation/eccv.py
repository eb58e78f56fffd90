"""ECCV Caption (Chun et al., 2022) and Crisscrossed Captions (CxC; Parekh et al., 2021) of a run on COCO's 5K test.

Both add the matches that COCO's own ground truth lacks. The package `eccv_caption` has the ground truths and computes
the metrics.
"""

import re
import warnings
from collections.abc import Mapping

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError, require
from jitm.pages import tables

TARGETS = ('eccv_map_at_r', 'eccv_rprecision', 'eccv_r1', 'cxc_recalls')
CANDIDATES = 100  # passed to the package for each query; ECCV Caption has at most 48 matches
WANTED = "--eccv needs COCO's test split of 5,000 images in Karpathy's order, with 25,000 captions and COCO's image ids"


class GroundTruth:
    """The ground truths of the package for one split.

    Attributes:
      image_ids: COCO's ids of the I images.
      caption_ids: COCO's ids of the T captions.
    """

    def __init__(self, split: Split):
        """Reads the ground truths and compares the images with a split's.

        Raises:
          UserError: If the package is not installed, or these are other images.
        """
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # it recommends two faster packages
            self._metrics = require('eccv_caption', extra='eccv').Metrics()
        self.caption_ids = [int(caption) for caption in self._metrics.coco_ids]
        owners = [self._metrics.coco_gts['t2i'][caption][0] for caption in self.caption_ids]
        self.image_ids = list(dict.fromkeys(owners))
        rows = [self.image_ids.index(owner) for owner in owners]
        numbers = [re.findall(r'\d+', name) for name in split.image_ids]
        ids = [int(digits[-1]) if digits else None for digits in numbers]  # the last number of a name is COCO's id
        if ids != self.image_ids or split.image_of_text.tolist() != rows:
            raise UserError(f'{WANTED}; {split.name} has other images, or another order')

    def metrics(self, sims: np.ndarray) -> dict[str, float]:
        """Computes the metrics from the similarities [I, T] of all images with all captions.

        Returns:
          `i2t/` and `t2i/` with `eccv_map_at_r`, `eccv_rprecision`, `eccv_r1`, `cxc_r1`, `cxc_r5` and `cxc_r10`, in
          percent. Among equal scores the first candidate is ranked first.
        """
        i2t = _ranked(sims, self.image_ids, self.caption_ids)
        t2i = _ranked(sims.T, self.caption_ids, self.image_ids)
        values = self._metrics.compute_all_metrics(i2t, t2i, target_metrics=TARGETS, Ks=(1, 5, 10))
        percent = {}
        for direction in ('i2t', 't2i'):
            for name in sorted(values):
                percent[f'{direction}/{name}'] = 100 * float(values[name][direction])
        return percent


def _ranked(sims: np.ndarray, queries: list[int], candidates: list[int]) -> dict[int, list[int]]:
    """Returns the best candidates of each query, ids by id."""
    best = {}
    for query, scores in zip(queries, sims, strict=True):
        order = np.argsort(-scores, kind='stable')[:CANDIDATES]
        best[query] = [candidates[index] for index in order]
    return best


def table(values: Mapping[str, float]) -> str:
    """Returns the metrics as a Markdown table with one line for each direction."""
    names = [key.removeprefix('i2t/') for key in values if key.startswith('i2t/')]
    rows = []
    for direction in ('i2t', 't2i'):
        numbers = (values[f'{direction}/{name}'] for name in names)
        rows.append([direction, *map('{:.1f}'.format, numbers)])
    return tables.table(['', *names], rows)
