"""Random photos, and files of unusual ones."""

import numpy as np
from PIL import Image

from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pipeline import Pipeline
from jitm.data.splits import Split
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from tests.conftest import UNCHANGED


def picture(width=60, height=40, mode='RGB', seed=0):
    """A smooth random image."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def odd_photos(folder):
    """Writes photos that are turned, have transparent pixels, 16 bits, CMYK, and a palette with a transparent color."""
    exif = Image.Exif()
    clear = picture(mode='RGBA')
    exif[0x0112] = 6
    clear.putalpha(picture(mode='L', seed=1))
    picture().save(folder / 'turned.jpg', exif=exif)
    clear.save(folder / 'clear.png')
    Image.fromarray(np.asarray(picture(mode='L'), np.uint16) * 256).save(folder / 'deep.png')
    picture(mode='CMYK').save(folder / 'inks.jpg')
    picture().quantize(8).save(folder / 'few.png', transparency=3)


def make_pipeline(split: Split, batch_size: int) -> Pipeline:
    """Returns batches of the photos of a split and their words, without augmentation."""
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    options = {'length_multiple': 4, 'augmentation': Augmentation(**UNCHANGED), 'reads': ('pixels',)}
    return Pipeline(split, tokens, vocabulary, batch_size=batch_size, seed=3, **options)
