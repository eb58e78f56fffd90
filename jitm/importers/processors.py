"""How photos become pixels, as folders of transformers state it."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jitm.config.foreign import declared, read_declared
from jitm.data.images.transforms import INTERPOLATIONS
from jitm.errors import UserError
from jitm.layers.vit import CLIP_DEVIATION, CLIP_MEAN
from jitm.types import Positive

PROCESSOR = 'preprocessor_config.json'
PROCESSORS = 'processor_config.json'  # which version 5 writes
BICUBIC = INTERPOLATIONS['bicubic']
CLASSES = ('ImageProcessor', 'ImageProcessorFast', 'ImageProcessorPil', 'FeatureExtractor')  # ends of their names
Mean = tuple[float, float, float]
Deviation = tuple[Positive, Positive, Positive]


@declared
class Processor:
    """An image processor, whose class has the default of a key that is None."""

    harmless = """
        _processor_class _valid_processor_keys data_format device disable_grouping do_convert_rgb input_data_format
        processor_class return_tensors
        """

    do_resize: Literal[True, None] = None
    resample: Literal[BICUBIC, None] = None
    crop_size: Any = None
    do_rescale: Literal[True, None] = None
    rescale_factor: Literal[1 / 255, None] = None
    do_normalize: Literal[True, None] = None
    image_mean: Mean | None = None
    image_std: Deviation | None = None
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


def processor_of(model: str, **values: Collection[Any]) -> type[Processor]:
    """Declares the image processor of a model of transformers, versions 3 to 5.

    Args:
      model: The name of the model in names of classes.
      **values: The values of further keys.
    """
    classes = [f'{model}{kind}' for kind in CLASSES]
    values = {'image_processor_type': classes, 'feature_extractor_type': classes, **values}
    fields = [(key, Literal[*supported, None], None) for key, supported in values.items()]
    return dataclasses.make_dataclass('Processor', fields, bases=(Processor,), frozen=True, kw_only=True)


def of_square(model: str, edge: int, filters: Collection[int] = (BICUBIC,)) -> type[Processor]:
    """Declares a processor that resizes photos to squares, whatever their aspect.

    Args:
      model: The name of the model in names of classes.
      edge: The height and width in pixels.
      filters: Pillow's numbers of the interpolations that are read.
    """
    square = [{'height': edge, 'width': edge}]
    return processor_of(model, size=square, default_to_square=[True, False], resample=filters, do_center_crop=[False])


def read_pixels(folder: Path, kind: type[Processor], default: Pixels = CLIP_PIXELS) -> Pixels:
    """Reads `preprocessor_config.json`, or the image processor in `processor_config.json`.

    Args:
      folder: The folder, which may have neither.
      kind: The declared keys.
      default: The values of the model.

    Raises:
      UserError: If photos become pixels in another way, or the files disagree.
    """
    file = folder / PROCESSOR
    common = folder / PROCESSORS
    processors = [read_declared(kind, file)] if file.is_file() else []
    section = read_declared(_Processors, common).image_processor
    if section is not None:
        processors.append(read_declared(kind, common, section, 'image_processor.'))
    pixels = {_pixels(processor, default) for processor in processors} or {default}
    if len(pixels) > 1:
        raise UserError(f'{file} and {common} differ in mean, deviation or interpolation: remove the wrong one')
    return pixels.pop()


def _pixels(processor: Processor, default: Pixels) -> Pixels:
    names = {number: name for name, number in INTERPOLATIONS.items()}
    return Pixels(
        mean=tuple(processor.image_mean or default.mean),
        deviation=tuple(processor.image_std or default.deviation),
        interpolation=names.get(processor.resample, default.interpolation),
    )
