"""Tests of decoding and cropping; the references are the steps of torchvision, one after the other."""

import concurrent.futures
import io
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image, ImageOps

from jitm.data.images import transforms
from jitm.data.images.transforms import Transform, check_image, decode, sample_box
from jitm.errors import UserError
from tests.conftest import environment
from tests.support.photos import odd_photos, picture

BILINEAR = Image.Resampling.BILINEAR
BICUBIC = Image.Resampling.BICUBIC


def resized(image, short_side, interpolation):
    """Torchvision's Resize of the shorter side."""
    width, height = image.size
    longer = int(short_side * max(width, height) / min(width, height))
    size = (short_side, longer) if width <= height else (longer, short_side)
    return image.resize(size, interpolation)


@pytest.mark.parametrize(('width', 'height'), [(60, 40), (37, 90), (33, 33), (20, 400)])
@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
def test_the_centre_crop_is_a_resize_and_a_crop(width, height, interpolation):
    image = picture(width, height)
    whole = resized(image, 30, Image.Resampling[interpolation.upper()])
    left = round((whole.width - 22) / 2)
    top = round((whole.height - 22) / 2)
    transform = Transform(22, 30, interpolation, 'random', 0.08, flip=True)
    np.testing.assert_array_equal(transform.evaluate(image), whole.crop((left, top, left + 22, top + 22)))


@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
def test_without_a_short_side_nothing_is_cut(interpolation):
    image = picture(60, 40)
    transform = Transform(22, 0, interpolation, 'centre', 1.0, flip=False)
    want = image.resize((22, 22), Image.Resampling[interpolation.upper()])
    np.testing.assert_array_equal(transform.evaluate(image), want)
    np.testing.assert_array_equal(transform.sample(image, np.random.default_rng(0)), want)
    np.testing.assert_array_equal(transform.evaluate_crops(image), [want] * 5 + [ImageOps.mirror(want)] * 5)


def test_ten_crops_are_the_corners_the_centre_and_their_mirror_images():
    crops = Transform(22, 30, 'bilinear', 'centre', 0.08, flip=False).evaluate_crops(picture())
    whole = resized(picture(), 30, BILINEAR)
    want = []
    for view in (whole, ImageOps.mirror(whole)):
        right = view.width - 22
        bottom = view.height - 22
        for left, top in ((0, 0), (right, 0), (0, bottom), (right, bottom), (round(right / 2), round(bottom / 2))):
            want.append(view.crop((left, top, left + 22, top + 22)))
    np.testing.assert_array_equal(crops, want)


@pytest.mark.needs('torchvision')
@pytest.mark.parametrize(('width', 'height'), [(60, 40), (37, 90), (33, 33), (20, 400)])
@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
def test_crops_of_evaluation_equal_torchvision(width, height, interpolation):
    from torchvision import transforms as steps

    image = picture(width, height)
    whole = steps.Resize(30, steps.InterpolationMode(interpolation))(image)
    transform = Transform(22, 30, interpolation, 'centre', 0.08, flip=False)
    np.testing.assert_array_equal(transform.evaluate(image), steps.CenterCrop(22)(whole))
    np.testing.assert_array_equal(transform.evaluate_crops(image), steps.TenCrop(22)(whole))


@pytest.mark.needs('torchvision')
@pytest.mark.parametrize(('width', 'height'), [(60, 40), (30, 90)])
def test_random_boxes_have_the_distribution_of_torchvision(width, height):
    from torchvision import transforms as steps

    image = picture(width, height)
    rng = np.random.default_rng(0)
    ours = np.array([sample_box(width, height, 0.08, rng) for _ in range(20_000)])
    theirs = np.array([steps.RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in range(20_000)])
    top, left, down, across = theirs.T
    theirs = np.stack([left, top, left + across, top + down], axis=1)
    np.testing.assert_allclose(np.mean(ours, axis=0), np.mean(theirs, axis=0), atol=0.02 * max(width, height))
    np.testing.assert_allclose(np.std(ours, axis=0), np.std(theirs, axis=0), atol=0.02 * max(width, height))


def test_random_boxes_have_the_published_areas_and_aspects():
    rng = np.random.default_rng(0)
    boxes = np.array([sample_box(400, 300, 0.08, rng) for _ in range(2000)])
    width, height = (boxes[:, 2:] - boxes[:, :2]).T
    assert (boxes >= 0).all()
    assert (boxes[:, 2] <= 400).all()
    assert (boxes[:, 3] <= 300).all()
    area = width * height / (400 * 300)
    aspect = width / height
    assert 0.079 < area.min() < 0.09
    assert area.max() > 0.9
    assert 0.74 < aspect.min() < 0.77
    assert 1.3 < aspect.max() < 1.35
    assert abs(np.log(aspect)).mean() == pytest.approx(np.log(4 / 3) / 2, abs=0.02)


def test_a_box_that_never_fits_is_the_largest_central_one():
    assert sample_box(1000, 20, 0.9, np.random.default_rng(0)) == (486, 0, 513, 20)
    assert sample_box(20, 1000, 0.9, np.random.default_rng(0)) == (0, 486, 20, 513)


def test_a_random_crop_is_a_crop_and_a_resize():
    transform = Transform(16, 20, 'bicubic', 'random', 0.5, flip=False)
    got = transform.sample(picture(), np.random.default_rng(3))
    box = sample_box(60, 40, 0.5, np.random.default_rng(3))
    np.testing.assert_array_equal(got, picture().crop(box).resize((16, 16), BICUBIC))


def test_half_of_the_examples_are_mirrored():
    transform = Transform(16, 20, 'bilinear', 'centre', 1.0, flip=True)
    image = picture()
    plain = transform.evaluate(image)
    samples = [transform.sample(image, np.random.default_rng(seed)) for seed in range(100)]
    mirrored = [np.array_equal(one, plain[:, ::-1]) for one in samples]
    assert all(np.array_equal(one, plain) or flipped for one, flipped in zip(samples, mirrored, strict=True))
    assert 30 < sum(mirrored) < 70


def test_crops_have_the_right_shapes():
    transform = Transform(16, 20, 'bilinear', 'random', 0.08, flip=True)
    assert transform.evaluate(picture()).shape == (16, 16, 3)
    assert transform.evaluate_crops(picture()).shape == (10, 16, 16, 3)
    assert transform.is_random
    assert not Transform(16, 20, 'bilinear', 'centre', 0.08, flip=False).is_random


def close(path, image, tolerance):
    """Whether a decoded file is an image, on average."""
    difference = decode(path, lambda photo: np.asarray(photo, int)) - np.asarray(image, int)
    return abs(difference).mean() < tolerance


@pytest.mark.parametrize('mode', ['RGB', 'L', 'CMYK', 'YCbCr'])
def test_jpegs_of_all_kinds_become_red_green_and_blue(mode, tmp_path):
    image = picture(mode=mode)
    path = tmp_path / 'one.jpg'
    image.save(path, quality=95)
    assert close(path, image.convert('RGB'), 4)


def test_pngs_of_all_kinds_become_red_green_and_blue(tmp_path):
    image = picture()
    path = tmp_path / 'one.png'
    for mode in ('P', 'L', '1', 'LA', 'RGBA'):
        image.convert(mode).save(path)
        assert close(path, image.convert(mode).convert('RGB'), 0.5)
    deep = np.asarray(image.convert('L'), np.uint16) * 256
    Image.fromarray(deep).save(path)
    assert close(path, image.convert('L').convert('RGB'), 0.5)


def test_transparent_pixels_are_white(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:4, :, 3] = 255
    Image.fromarray(pixels).save(tmp_path / 'one.png')
    got = decode(tmp_path / 'one.png', np.asarray)
    assert not got[:4].any()
    assert (got[4:] == 255).all()


def test_images_are_turned_upright(tmp_path):
    image = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate clockwise by 90 degrees
    image.save(tmp_path / 'one.png', exif=exif)
    upright = image.transpose(Image.Transpose.ROTATE_270)
    np.testing.assert_array_equal(decode(tmp_path / 'one.png', np.asarray), upright)


def encoded(image, kind='JPEG', **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_pillow_keeps_its_protection_against_bombs(tmp_path, monkeypatch):
    assert Image.MAX_IMAGE_PIXELS == transforms.MAX_PIXELS == 2**30 // 12
    picture().save(tmp_path / 'one.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)  # a limit of the program that uses jitm
    with pytest.raises(UserError, match=r'one\.png has too many pixels for Pillow: shrink it'):
        check_image(tmp_path / 'one.png')


@pytest.mark.parametrize('name', ['turned.jpg', 'clear.png', 'deep.png', 'inks.jpg', 'few.png'])
def test_a_file_its_bytes_and_pillow_have_the_same_pixels(name, tmp_path):
    odd_photos(tmp_path)
    path = tmp_path / name
    of_file = decode(path, np.asarray)
    assert of_file.dtype == np.uint8
    assert of_file.shape == ((60, 40, 3) if name == 'turned.jpg' else (40, 60, 3))
    assert np.ptp(of_file) > 100  # neither clipped nor hidden
    opened = Image.open(path)
    for photo in (path.read_bytes(), opened):
        np.testing.assert_array_equal(decode(photo, np.asarray), of_file)
    assert opened.size == (60, 40)  # a photo of the caller is not changed
    np.testing.assert_array_equal(decode(opened, np.asarray), of_file)


def test_threads_hold_a_bounded_number_of_pixels(tmp_path, monkeypatch):
    """Photos of 2,400 and 600 pixels by 8 threads: at most 5,000 at a time, one that is larger alone."""
    monkeypatch.setattr(transforms, '_PIXELS', transforms.Budget(5000))
    sizes = [(60, 40), (30, 20), (90, 60)] * 8
    held = [0]
    most = []
    lock = threading.Lock()

    def view(photo):
        pixels = photo.width * photo.height
        with lock:
            held[0] += pixels
            most.append(held[0])
        time.sleep(0.002)
        with lock:
            held[0] -= pixels

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda size: decode(encoded(picture(*size)), view), sizes))
    assert len(most) == 24
    assert max(most) == 5400
    assert max(pixels for pixels in most if pixels != 5400) <= 5000


PEAK = """
import concurrent.futures, resource, sys
from jitm.data.images import transforms

path, threads = sys.argv[1], int(sys.argv[2])
transforms._PIXELS = transforms.Budget(30_000_000)
with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    list(pool.map(lambda _: transforms.decode(path, lambda photo: photo.size), range(threads)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_threads_do_not_keep_the_memory_of_large_photos(tmp_path):
    """Photos of 26 million transparent pixels, one at a time: 8 threads need little more memory than one."""
    Image.new('RGBA', (5100, 5100), (255, 0, 0, 100)).save(tmp_path / 'large.png')

    def peak(threads):
        command = [sys.executable, '-c', PEAK, str(tmp_path / 'large.png'), str(threads)]
        return int(subprocess.run(command, env=environment(), check=True, capture_output=True, text=True).stdout)

    assert peak(8) < 1.5 * peak(1)


def test_a_failure_gives_its_pixels_back(monkeypatch):
    monkeypatch.setattr(transforms, '_PIXELS', transforms.Budget(2400))
    for _ in range(3):
        with pytest.raises(UserError, match='the photo is damaged or cut off'):
            decode(encoded(picture())[:-300], np.asarray)
        with pytest.raises(ZeroDivisionError):
            decode(encoded(picture()), lambda photo: 1 / 0)
    assert decode(encoded(picture()), lambda photo: photo.size) == (60, 40)


def test_whatever_is_checked_can_be_decoded(tmp_path):
    """For a JPEG with each of many bytes changed: the check and decoding refuse the same files."""
    data = bytearray(encoded(picture(64, 64)))
    path = tmp_path / 'one.jpg'
    for position in range(2, len(data), 37):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            check_image(path)
        except UserError:
            continue
        assert decode(path, lambda photo: photo.mode) == 'RGB'
