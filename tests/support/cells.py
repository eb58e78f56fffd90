"""A small network of the features of photos."""

import numpy as np
from flax import linen as nn

from jitm.data.images import photos
from jitm.encoders import networks
from tests.support.matchers import make_vse


class Cells(nn.Module):
    """An image encoder whose network averages the pixels of each cell of a grid, and multiplies them by a parameter."""

    edge: int
    normalize_features: bool = False

    reads = ('pixels',)

    def setup(self):
        self.factor = self.param('factor', nn.initializers.constant(2.0), ())

    def features(self, images, train=False):
        grid = images.pixels.reshape(len(images.pixels), self.edge, 16 // self.edge, self.edge, 16 // self.edge, 3)
        return self.factor * grid.mean(axis=(2, 4)).reshape(len(images.pixels), -1, 3)

    def __call__(self, images, train=False):
        raise NotImplementedError


def make_network(edge=2, normalize=False, crops=1, dtype='float32', factor=2.0):
    model = make_vse().clone(image=Cells(edge, normalize))
    variables = {'params': {'image': {'factor': np.float32(factor)}}}
    return networks.FeatureNetwork(model, variables, crops, dtype, 'highest')


def load(root, name='dev', **changes):
    return photos.load(name, root=str(root), **{'image_size': 16, 'short_side': 20} | changes)
