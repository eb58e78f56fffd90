"""Checks of the splits that the user's code makes."""

from typing import Any

import numpy as np

from jitm.data.arrays import BOXES, FLOATS, INTEGERS, are_boxes, check_finite
from jitm.data.splits import Split
from jitm.errors import UserError

ARRAYS = {  # field -> dtypes and axes, where I, R and T are numbers of images, regions and captions
    'regions': (FLOATS, 'IRD'),
    'pixels': ((np.uint8,), 'IHW3'),
    'counts': (INTEGERS, 'I'),
    'image_of_text': (INTEGERS, 'T'),
    'boxes': ((np.float32, np.float16, np.float64), 'IR4'),
}


def check_own(split: Any, wrong: str) -> None:
    """Raises a UserError unless a source of the user has returned a consistent split.

    Args:
      split: What the source has returned.
      wrong: The start of the message, which names the source.
    """
    if not isinstance(split, Split):
        raise UserError(f'{wrong} no jitm.data.splits.Split but {type(split).__name__}: return a Split')
    problem = _problem(split)
    if problem:
        raise UserError(f'{wrong} a split {problem}')
    if split.regions is not None:
        check_finite(split.regions, split.name)


def _problem(split: Split) -> str:
    """Describes an inconsistency in a split; '' if there is none."""
    arrays = {name: getattr(split, name) for name in ARRAYS if getattr(split, name) is not None}
    for name, array in arrays.items():
        dtypes, axes = ARRAYS[name]
        if getattr(array, 'dtype', None) not in dtypes or len(array.shape) != len(axes):
            kinds = ' or '.join(kind.__name__ for kind in dtypes[:2])
            return f'whose {name} are no array of {kinds} [{", ".join(axes)}]'
    if not {'regions', 'pixels'} & arrays.keys() or not split.num_images:
        return 'without images: give regions or pixels of at least one'
    images = split.num_images
    regions = 0 if split.regions is None else split.regions.shape[1]
    sizes = {'I': images, 'R': regions, 'T': split.num_texts, '3': 3, '4': 4}
    for name, array in arrays.items():
        axes = ARRAYS[name][1]
        if any(size != sizes.get(axis, size) for axis, size in zip(axes, array.shape, strict=True)):
            required = ', '.join(str(sizes.get(axis, axis)) for axis in axes)
            return f'whose {name} have shape {array.shape}, but it must be [{required}], as of its other arrays'
    if {len(split.image_ids or ()), images if split.tags is None else len(split.tags)} != {images}:
        return f'whose image_ids or tags are not one for each of its {images} images'
    if regions and (split.counts is None or not 1 <= split.counts.min() <= split.counts.max() <= regions):
        return f'whose counts are not from 1 to {regions}, the number of regions'
    if not all(isinstance(caption, str) and caption.strip() for caption in split.captions):
        return 'whose captions are not all texts, or blank'
    if not np.array_equal(np.unique(split.image_of_text), np.arange(images)):
        return f'whose image_of_text does not give each of its {images} images a caption'
    if split.boxes is not None and not are_boxes(split.boxes):
        return f'whose boxes are not {BOXES}'
    return ''
