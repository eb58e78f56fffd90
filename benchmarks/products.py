"""Counts the floating-point operations that the matrix products of a training step, or of an evaluation, need.

A multiplication and its addition are two operations. The products are those of the published network on captions of
their own lengths: padding does not count, nor does anything that is computed a second time. Among equal ways of
computing a score, the one with the fewest operations counts. An attended vector of which only the norm and a cosine are
used needs no product, as both follow from similarities and Gram matrices (SCAN, BFAN, NAAF), and an edge of SGR needs
one instead of two. Elementwise operations, lookups, normalizations, sorting, GPO's embeddings of positions and products
with a single column do not count.

The gradient of a product needs as many operations for each factor that has a gradient: two in a layer, one in a layer
that reads features or pixels. A loss of the hardest negatives has a gradient for at most 3 B of the B^2 scores of a
batch, which counts as none where words attend to regions. Only SAF, which normalizes each caption over all images,
has a gradient for all of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jitm.layers.transformer import size_named

Section = Mapping[str, Any]  # a section of the config


class Inputs(NamedTuple):
    """Sizes of a batch, or of a split.

    Attributes:
      regions: The number of regions of each image, int [I]; not read for pixels.
      lengths: The number of tokens of each caption, int [T], special tokens included.
      features: The size F of a region's features, 0 for pixels.
      extra: The number of pairs that are candidates of the others only; they are the last ones.
    """

    regions: np.ndarray
    lengths: np.ndarray
    features: int
    extra: int = 0


class Product(NamedTuple):
    """The operations of some products without their gradient, and the number of their factors that have a gradient."""

    operations: float
    gradients: int = 2


def forward(products: Iterable[Product]) -> float:
    """Returns the operations without a gradient."""
    return float(sum(product.operations for product in products))


def training(products: Iterable[Product]) -> float:
    """Returns the operations with the gradient."""
    return float(sum(product.operations * (1 + product.gradients) for product in products))


# Layers.


def linear(rows: int, inputs: int, outputs: int, gradients: int = 2) -> Product:
    """Returns the product of a linear layer on some rows."""
    return Product(2 * rows * inputs * outputs, gradients)


def gru(steps: int, inputs: int, size: int, directions: int = 1) -> Product:
    """Returns the products of a GRU: three gates read the input and the state, also the first one, which is zero."""
    return linear(steps, inputs + size, directions * 3 * size)


def transformer(lengths: np.ndarray, hidden: int, mlp: int, layers: int, gradients: int = 2) -> Product:
    """Returns the products of blocks on sequences: four projections, the attention, and a network of two layers."""
    projections = 2 * lengths.sum() * (4 * hidden**2 + 2 * hidden * mlp)
    attention = 2 * 2 * np.square(lengths).sum() * hidden
    return Product(layers * (projections + attention), gradients)


def regions(model: Section, inputs: Inputs) -> list[Product]:
    """Returns the products of a linear layer on regions, and of an MLP of its output or of the features."""
    rows = inputs.regions.sum()
    features = inputs.features
    dim = model['embed_dim']
    products = [linear(rows, features, dim, gradients=1)]
    mlp = model['image']['mlp']
    if mlp == 'residual':
        products.append(linear(rows, dim, dim // 2))
    elif mlp == 'residual_on_input':
        products.append(linear(rows, features, dim // 2, gradients=1))
    return products if mlp == 'none' else [*products, linear(rows, dim // 2, dim)]


def words(model: Section, inputs: Inputs) -> list[Product]:
    """Returns the products of a GRU, or of a BERT and a linear layer."""
    text = model['text']
    dim = model['embed_dim']
    tokens = inputs.lengths.sum()
    if 'size' not in text:
        return [gru(tokens, text['word_dim'], dim, 2 if text['bidirectional'] else 1)]
    size = size_named(text['size'])
    return [transformer(inputs.lengths, size.hidden, size.mlp_dim, size.layers), linear(tokens, size.hidden, dim)]


def inner_products(model: Section, inputs: Inputs) -> Product:
    """Returns the products of the vectors of images and captions."""
    return linear(len(inputs.regions), model['embed_dim'], len(inputs.lengths))


# Systems: the products of a network, from the config's `model`.


def vse(model: Section, inputs: Inputs) -> list[Product]:
    """VSE++, VSE-infinity, RVSE and RVSE++."""
    return [*regions(model, inputs), *words(model, inputs), inner_products(model, inputs)]


def vsrn(model: Section, inputs: Inputs) -> list[Product]:
    """VSRN without its captioner."""
    rows = inputs.regions.sum()
    dim = model['embed_dim']
    relations = Product(2 * 2 * np.square(inputs.regions).sum() * dim)
    graph = [*[linear(rows, dim, dim)] * 4, relations]
    return [
        linear(rows, inputs.features, dim, gradients=1),
        *graph * model['graph_layers'],
        gru(rows, dim, dim),
        gru(inputs.lengths.sum(), model['word_dim'], dim),
        inner_products(model, inputs),
    ]


def similarities(model: Section, inputs: Inputs, gradients: int = 0) -> Product:
    """Returns the products of all regions with all words."""
    return linear(inputs.regions.sum(), model['embed_dim'], inputs.lengths.sum(), gradients)


def words_attend(model: Section, inputs: Inputs) -> list[Product]:
    """SCAN t-i and NAAF, whose words attend to regions."""
    norms = 2 * np.square(inputs.regions).sum() * inputs.lengths.sum()
    return [*regions(model, inputs), *words(model, inputs), similarities(model, inputs), Product(norms, 0)]


def both_attend(model: Section, inputs: Inputs) -> list[Product]:
    """BFAN, whose regions also attend to words."""
    norms = 2 * np.square(inputs.lengths).sum() * inputs.regions.sum()
    return [*words_attend(model, inputs), Product(norms, 0)]


def sgraf(model: Section, inputs: Inputs) -> list[Product]:
    """SGR, SAF and the network of DBL."""
    dim = model['embed_dim']
    size = model['alignment_dim']
    images = len(inputs.regions)
    gradients = 2 if model['reasoning']['name'] == 'alignment.AttentionFiltration' else 0
    products = [*regions(model, inputs), *words(model, inputs)]
    nodes = inputs.lengths
    if model['image_whole']:
        for elements in (inputs.regions, inputs.lengths):  # the elements, and their mean
            products += [linear(elements.sum(), dim, dim), linear(len(elements), dim, dim)]
        nodes = inputs.lengths + 1
    products += [
        similarities(model, inputs, gradients),
        similarities(model, inputs, gradients),  # the attended vectors
        linear(images * nodes.sum(), dim, size, gradients),
    ]
    if model['reasoning']['name'] == 'alignment.GraphReasoning':
        products.append(Product(images * graph_reasoning(nodes, size, model['reasoning']['steps']), gradients))
    return products


def graph_reasoning(nodes: np.ndarray, size: int, steps: int) -> float:
    """Returns the operations of SGR on graphs with these numbers of nodes; its last step reads the first node only."""
    node = 2 * (2 * size**2 + 2 * size * nodes)  # for its edges, their mean, and two matrices
    return np.sum(((steps - 1) * nodes + 1) * node)


def clip(model: Section, inputs: Inputs) -> list[Product]:
    """CLIP with a vision transformer."""
    image = model['image']
    text = model['text']
    dim = model['embed_dim']
    images = len(inputs.regions)
    patches = (image['image_size'] // image['patch_size']) ** 2
    return [
        linear(images * patches, 3 * image['patch_size'] ** 2, image['hidden_dim'], gradients=1),
        tower(image, np.full(images, patches + 1)),
        linear(images, image['hidden_dim'], dim),
        tower(text, inputs.lengths),
        linear(len(inputs.lengths), text['hidden_dim'], dim),
        inner_products(model, inputs),
    ]


def tower(sizes: Section, lengths: np.ndarray) -> Product:
    """Returns the products of a transformer of CLIP."""
    return transformer(lengths, sizes['hidden_dim'], sizes['mlp_dim'], sizes['num_layers'])


def uniter(model: Section, inputs: Inputs, num_hard: int) -> list[Product]:
    """UNITER, which scores all candidates without a gradient, and the match and the hardest ones with it.

    A pair of the batch is a candidate of its image and of its caption, and is scored once for both. The hardest ones
    are assumed to have captions of mean length. Embedding locations takes no notable operations.
    """
    size = size_named(model['size'])
    queries = len(inputs.lengths) - inputs.extra
    images = np.full(len(inputs.lengths), queries)
    images[:queries] += inputs.extra - 1  # all images but its own
    candidates = np.repeat(inputs.lengths, images)
    ranked = np.full(2 * queries * (1 + num_hard), inputs.lengths.mean())
    rows = inputs.regions.sum()
    products = [linear(rows, inputs.features, size.hidden, gradients) for gradients in (0, 1)]
    for lengths, gradients in ((candidates, 0), (ranked, 2)):
        tokens = inputs.regions.mean() + lengths
        products += [
            transformer(tokens, size.hidden, size.mlp_dim, size.layers, gradients),
            linear(len(tokens), size.hidden, size.hidden, gradients),
        ]
    return products
