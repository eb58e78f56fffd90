"""Small problems of mining, and lists as files."""

import numpy as np

from jitm.data.pairs import mined_lists
from jitm.data.pairs.mined_lists import Candidates
from jitm.data.splits import Split
from jitm.files.outputs import OutputFolder
from jitm.mining.top_h import ProductSearch


def full_sort(scores, excluded, top_h):
    """Sorts by descending score, ties by ascending id."""
    scores = np.where(excluded, -np.inf, scores)
    ids = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.lexsort((ids, -scores), axis=1)[:, :top_h]
    return np.take_along_axis(scores, order, axis=1), order


def integer_vectors(*shape, seed=0):
    """Vectors whose inner products are integers with many ties."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def make_split(images, texts, seed=0):
    """A split whose images have one text or more."""
    extra = np.random.default_rng(seed).integers(images, size=texts - images)
    image_of_text = np.sort(np.concatenate([np.arange(images), extra])).astype(np.int32)
    regions = np.zeros((images, 1, 1), np.float32)
    ids = tuple(map(str, range(images)))
    return Split('random', regions, np.ones(images, np.int32), ('a text',) * texts, image_of_text, ids)


def products(images=7, texts=33):
    """A search with many ties, and its scores."""
    vectors = integer_vectors(images, 4), integer_vectors(texts, 4, seed=1)
    search = ProductSearch(*vectors, make_split(images, texts), memory_mb=1, precision='highest')
    return search, vectors[0] @ vectors[1].T


def make_job(folder):
    """A job of mining in a folder."""
    return OutputFolder(folder, mined_lists.KIND).begin('job')


def save_lists(folder, split, i2t, t2i, data=None):
    manifest = {'data': split.identity if data is None else data}
    scores = {'i2t': np.zeros(i2t.shape), 't2i': np.zeros(t2i.shape)}
    mined_lists.save(Candidates(i2t.astype(np.int32), t2i.astype(np.int32)), scores, manifest, 'train', folder)


def make_lists(split, top_h=2):
    matches = split.image_of_text == np.arange(split.num_images)[:, None]
    top_h_images = min(top_h, split.num_images - 1)
    return full_sort(np.zeros(matches.shape), matches, top_h)[1], full_sort(
        np.zeros(matches.T.shape), matches.T, top_h_images
    )[1]
