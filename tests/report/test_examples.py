"""Queries for which one of two similarity matrices is right, and their pictures."""

import base64
import dataclasses
import io

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from jitm.data.images import transforms
from jitm.data.images.pixels import Photos
from jitm.pages.pictures import EDGE, are_small, pictures_of, pixels_of
from jitm.report.examples import compare
from jitm.report.matrices import Matrix
from tests.support.photos import odd_photos
from tests.support.reports import make_split

# Two captions per image. By captions, `A` is right, right, wrong, wrong and `B` right, wrong, right, wrong.
A = np.array([[0.9, 0.8, 0.7, 0.1], [0.1, 0.2, 0.6, 0.1]], np.float32)
B = np.array([[0.9, 0.1, 0.2, 0.6], [0.1, 0.5, 0.7, 0.6]], np.float32)


def matrix(sims):
    images, texts = sims.shape
    image_of_text = np.repeat(np.arange(images), texts // images)
    return Matrix(path=None, image_of_text=image_of_text, protocol={}, captions='', sims=sims)


def test_queries_are_counted_by_hand():
    """By images, `A` is right and wrong (0.6 is the best own score of the second, and no other is higher: right)."""
    compared = compare(matrix(A), matrix(B), 4)
    assert compared['t2i'].counts.tolist() == [[1, 1], [1, 1]]
    assert compared['i2t'].counts.tolist() == [[0, 0], [0, 2]]
    assert compared['i2t'].examples == ({}, {})
    only_a, only_b = compared['t2i'].examples
    assert {query: [(one.top, one.rank) for one in pair] for query, pair in only_a.items()} == {1: [([0], 1), ([1], 2)]}
    assert {query: [one.rank for one in pair] for query, pair in only_b.items()} == {2: [2, 1]}


def test_examples_are_evenly_spaced_and_agree_with_the_ranks():
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(20, 60)).astype(np.float32) + 2 * np.repeat(np.eye(20), 3, axis=1) for _ in 'ab')
    few, many = (compare(matrix(first), matrix(second), count) for count in (3, 1000))
    for direction, all_queries in (('i2t', 20), ('t2i', 60)):
        assert many[direction].counts.sum() == all_queries
        for right in (0, 1):
            examples = many[direction].examples[right]
            assert len(examples) == many[direction].counts[1 - right, right]
            assert all(pair[right].rank == 1 < pair[1 - right].rank for pair in examples.values())
            number, queries = min(3, len(examples)), [*examples]
            chosen = [queries[n * len(examples) // number] for n in range(number)]
            assert few[direction].examples[right] == {query: examples[query] for query in chosen}


@pytest.fixture
def split():
    pixels = np.random.default_rng(0).integers(256, size=(2, 4, 5, 3)).astype(np.uint8)
    return dataclasses.replace(make_split('tiny/dev', [0, 1]), image_ids=('dog.jpg', 'cat'), pixels=pixels)


def decode(data_uri):
    return io.BytesIO(base64.b64decode(data_uri.partition(',')[2]))


def test_pixels_are_embedded_exactly(split):
    pictures = pictures_of(split, [1], None)
    assert [*pictures] == [1]
    assert pictures[1].startswith('data:image/png;base64,')
    np.testing.assert_array_equal(np.round(imread(decode(pictures[1]))[..., :3] * 255), split.pixels[1])


def test_photographs_are_found_by_their_ids_and_reduced(split, tmp_path):
    Image.new('RGB', (800, 400), 'red').save(tmp_path / 'dog.jpg')
    Image.new('L', (30, 20)).save(tmp_path / 'cat.png')
    pictures = pictures_of(split, [0, 1], tmp_path)
    assert [Image.open(decode(pictures[n])).size for n in (0, 1)] == [(EDGE, EDGE // 2), (30, 20)]
    assert all(picture.startswith('data:image/jpeg;base64,') for picture in pictures.values())


@pytest.mark.parametrize('name', ['turned.jpg', 'clear.png', 'deep.png', 'inks.jpg', 'few.png'])
def test_pictures_are_the_photos_that_models_read(split, tmp_path, name):
    odd_photos(tmp_path)
    seen = transforms.decode(tmp_path / name, lambda photo: np.asarray(photo, int))
    photos = dataclasses.replace(split, image_ids=(name,), pixels=Photos([str(tmp_path / name)], None))
    assert (are_small(split), are_small(photos)) == (True, False)
    for picture in (pictures_of(photos, [0], None)[0], pictures_of(photos, [0], tmp_path)[0]):
        drawn = np.asarray(Image.open(decode(picture)), int)
        assert drawn.shape == seen.shape
        assert abs(drawn - seen).mean() < 12  # as JPEG
    np.testing.assert_array_equal(pixels_of(photos, 0, tmp_path), seen)
