"""How photos become pixels, as folders of transformers state it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jitm.config.foreign import declared, read_declared, read_json
from jitm.data.images.transforms import INTERPOLATIONS
from jitm.errors import UserError
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN

PROCESSOR, PROCESSORS = 'preprocessor_config.json', 'processor_config.json'  # version 5 writes the second one
BICUBIC = INTERPOLATIONS['bicubic']
REMEDY = 'give another model'
CLASSES = 'ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil', 'FeatureExtractor'  # ends of their names
_HARMLESS = """
    _processor_class _valid_processor_keys data_format device disable_grouping do_convert_rgb input_data_format
    processor_class return_tensors
"""
HARMLESS = frozenset(_HARMLESS.split())


@declared
class Processor:
    """An image processor, whose class has the default of a key that is None."""

    do_resize: Literal[True, None] = None
    resample: Literal[BICUBIC, None] = None
    crop_size: Any = None
    do_rescale: Literal[True, None] = None
    rescale_factor: Literal[1 / 255, None] = None
    do_normalize: Literal[True, None] = None
    image_mean: Any = None
    image_std: Any = None
    do_pad: Literal[False, None] = None
    pad_size: None = None
    size_divisor: None = None


@declared
class _Processors:
    image_processor: dict | None = None
    processor_class: Any = None


class Pixels(NamedTuple):
    """The mean and the deviation of the pixels, and the name of the interpolation."""

    mean: tuple[float, ...] = CLIP_MEAN
    deviation: tuple[float, ...] = CLIP_DEVIATION
    interpolation: str = 'bicubic'


CLIP_PIXELS = Pixels()


def class_names(model: str) -> list[str]:
    """Returns the names of the image processors of a model in versions 4 and 5."""
    return [
        f'{model}{kind}' for kind in ('ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil', 'FeatureExtractor')
    ]


def of_square(model: str, edge: int, filters: tuple[int, ...] = (BICUBIC,)) -> type[Processor]:
    """Declares a processor that resizes photos to squares, whatever their aspect.

    Args:
      model: The name of the model in names of classes.
      edge: The height and width in pixels.
      filters: Pillow's numbers of the interpolations that are read.
    """

    @declared
    class Square(Processor):
        image_processor_type: Literal[*class_names(model), None] = None
        feature_extractor_type: Literal[*class_names(model), None] = None
        size: Literal[{'height': edge, 'width': edge}, None] = None
        default_to_square: bool | None = None
        resample: Literal[*filters, None] = None
        do_center_crop: Literal[False, None] = None

    return Square


def read_pixels(folder: Path, kind: type[Processor], default: Pixels = CLIP_PIXELS) -> Pixels:
    """Reads `preprocessor_config.json`, or the image processor in `processor_config.json`.

    Args:
      folder: The folder, which may have neither.
      kind: The declared keys.
      default: The values of the model.

    Raises:
      UserError: If photos become pixels in another way, or the files disagree.
    """
    processor = folder / PROCESSOR
    common = folder / PROCESSORS
    pixels = []
    if processor.is_file():
        pixels.append(_pixels(processor, read_json(processor), kind, default))
    section = read_declared(_Processors, common).image_processor
    if section is not None:
        pixels.append(_pixels(common, section, kind, default, 'image_processor.'))
    if len({*pixels}) > 1:
        raise UserError(f'{processor} and {common} differ in mean, deviation or interpolation: remove the wrong one')
    return pixels[0] if pixels else default


def _pixels(path: Path, content: Mapping[str, Any], kind: type, default: Pixels, where: str = '') -> Pixels:
    names = {number: name for name, number in INTERPOLATIONS.items()}
    processor = read_declared(kind, path, content, harmless=HARMLESS, where=where)
    moments = normalization(path, content, ('image_mean', 'image_std'), default[:2])
    return Pixels(*moments, names.get(processor.resample, default.interpolation))


def normalization(
    path: Path,
    content: Mapping[str, Any],
    keys: tuple[str, str],
    defaults: tuple[tuple, ...] = (CLIP_MEAN, CLIP_DEVIATION),
) -> list[tuple[float, ...]]:
    """Returns the mean and the deviation of the pixels."""
    moments = []
    for key, default, minimum, suffix in zip(keys, defaults, (-math.inf, 0), ('', ' above 0'), strict=True):
        value = default if content.get(key) is None else content[key]
        is_list = isinstance(value, list | tuple) and len(value) == 3
        if not is_list or not all(type(number) in (int, float) and minimum < number < math.inf for number in value):
            raise UserError(f"{path} sets '{key}' to {value!r}: it must be three numbers{suffix}")
        moments.append(tuple(value))
    return moments
