"""Random photos, and files of unusual ones."""

import numpy as np
from PIL import Image


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
