"""Caption metrics of texts for images: CIDEr, computed from the captions, or any metric read from a file."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

from jitm.data.arrays import open_npy
from jitm.data.splits import Split
from jitm.data.text.word_level import tokenize
from jitm.errors import UserError
from jitm.files import hash_file

MAX_N = 4
SCALE = 10  # as in the released code; the values in the paper are a tenth


class Relevance(NamedTuple):
    """A caption metric phi of the texts of a split for its images.

    Attributes:
      phi: A function from rows of images [M] and of texts [N] to float32 [M, N].
      hash: The SHA-256 of the file that phi is read from, in hexadecimal; '' if phi depends on the split alone.
    """

    phi: Callable[[np.ndarray, np.ndarray], np.ndarray]
    hash: str = ''


def _ngrams(captions: tuple[str, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields for n = 1 to MAX_N the texts and the ids of all n-grams; ids start from 0."""
    tokens = [tokenize(caption) for caption in captions]
    texts = np.repeat(np.arange(len(tokens)), [*map(len, tokens)])
    ids: dict[str, int] = {}
    words = itertools.chain.from_iterable(tokens)
    grams = np.array([ids.setdefault(word, len(ids)) for word in words], np.int64)
    for n in range(1, MAX_N + 1):
        yield texts, grams
        if n < MAX_N:
            # Two consecutive n-grams are one (n + 1)-gram.
            follows = texts[1:] == texts[:-1]
            pairs = grams[:-1][follows] * (grams.max(initial=0) + 1) + grams[1:][follows]
            texts = texts[1:][follows]
            grams = np.unique(pairs, return_inverse=True)[1]


def _unit_tfidf(texts: np.ndarray, grams: np.ndarray, captions_of: sparse.csr_array) -> sparse.csr_array:
    """Returns normalized tf-idf vectors [T, n-grams]: counts times log(I / images with the n-gram in a caption)."""
    images, size = captions_of.shape
    counts = sparse.csr_array((np.ones(len(grams)), (texts, grams)), shape=(size, grams.max(initial=0) + 1))
    documents = ((captions_of @ counts) > 0).sum(axis=0)
    weighted = counts @ sparse.diags_array(np.log(images / np.maximum(documents, 1)))
    lengths = np.sqrt(weighted.power(2).sum(axis=1))
    return sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)) @ weighted


def from_captions(split: Split) -> Relevance:
    """Returns CIDEr of texts, with the captions of images as references (Vedantam et al., 2015, eq. 1 to 3).

    The value is 10 times the mean cosine of tf-idf vectors of n-grams, over the references and n = 1 to 4. The idf
    counts the images of the split. A text is not compared with itself: for its own image the other captions are the
    references. Words are the words of the tokenizer, without stemming. This is not CIDEr-D.

    Args:
      split: The split whose captions are both the texts and the references.

    Returns:
      The metric, from 0 to 10.

    Raises:
      UserError: If an image has fewer than two captions.
    """
    references = np.bincount(split.image_of_text, minlength=split.num_images)
    if references.min() < 2:
        raise UserError(
            f'{split.name}, image {references.argmin()} has {references.min()} captions, but CIDEr compares each with '
            "the others: give a matrix instead, with relevance.source 'cider.from_file'"
        )
    entries = np.ones(split.num_texts), (split.image_of_text, np.arange(split.num_texts))
    captions_of = sparse.csr_array(entries, shape=(split.num_images, split.num_texts))
    vectors = [_unit_tfidf(texts, grams, captions_of) for texts, grams in _ngrams(split.captions)]
    text_vectors = sparse.hstack(vectors, format='csr', dtype=np.float32)
    image_vectors = captions_of.astype(np.float32) @ text_vectors  # a sum of cosines is the product with the sum
    with_itself = text_vectors.power(2).sum(axis=1)

    def phi(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        is_own = images[:, None] == split.image_of_text[texts]
        cosines = (image_vectors[images] @ text_vectors[texts].T).toarray() - is_own * with_itself[texts]
        return (SCALE / MAX_N * cosines / (references[images][:, None] - is_own)).astype(np.float32)

    return Relevance(phi)


def from_file(split: Split, *, path: str) -> Relevance:
    """Reads a metric of every text for every image, such as SPICE, or the published `{dataset}_cider.npy`.

    Args:
      split: The split of these images and texts.
      path: The path of a .npy file, float16 or float32 [I, T], memory-mapped; [T, I] is transposed, and a square one is
        [I, T]. The whole file is read once, for its hash.

    Raises:
      UserError: If the file is missing or damaged or has another shape; later, if a requested value is not finite.
    """
    matrix = open_npy(path)
    shape = (split.num_images, split.num_texts)
    if matrix.shape not in (shape, shape[::-1]):
        raise UserError(
            f'{path} has shape {matrix.shape}, but {split.name} has {shape[0]} images and {shape[1]} texts: '
            f'it must be {shape} or {shape[::-1]}'
        )
    matrix = matrix if matrix.shape == shape else matrix.T

    def phi(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        values = matrix[np.ix_(images, texts)].astype(np.float32)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise UserError(
                f'{path} has no finite value for image {images[row]} and text {texts[column]}: write it again'
            )
        return values

    return Relevance(phi, hash_file(path))
