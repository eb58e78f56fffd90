"""Photos for a run on features: the network that encoded its training data computes their features, too."""

from collections.abc import Iterator, Sequence

import numpy as np

from jitm.data.pixels import in_threads
from jitm.data.transforms import Photo, Transform, decode
from jitm.inference.features import grid_boxes
from jitm.inference.networks import FeatureNetwork, crops_of
from jitm.serving.inputs import ImageFeatures
from jitm.types import Images


def features_of_photos(network: FeatureNetwork, photos: Sequence[Photo], transform: Transform) -> ImageFeatures:
    """Returns the features of photos, those that `jitm encode` writes.

    Args:
      network: The network.
      photos: I photos, see `decode`.
      transform: How they become pixels.

    Raises:
      UserError: If a photo cannot be read.
    """
    view, size = crops_of(transform, network.crops), network.images_per_call

    def batches() -> Iterator[np.ndarray]:
        for start in range(0, len(photos), size):
            batch = photos[start : start + size]
            names = [f'image {start + n}' for n in range(len(batch))]
            yield np.stack(in_threads(lambda n, b=batch, m=names: decode(b[n], view, m[n]), len(batch)))

    return _as_features(network.encode(batches()))


def images_of_crops(network: FeatureNetwork, crops: np.ndarray) -> Images:
    """Returns the features of decoded photos as a model whose images have vectors reads them.

    Args:
      network: The network.
      crops: The crops of I photos, uint8 [I, C, H, W, 3].
    """
    size = network.images_per_call
    features = _as_features(network.encode(crops[start : start + size] for start in range(0, len(crops), size)))
    return Images(features.regions, features.counts)


def _as_features(batches: Iterator[np.ndarray]) -> ImageFeatures:
    regions = np.concatenate(list(batches))
    count = regions.shape[1]
    boxes = grid_boxes(count)
    boxes = None if boxes is None else np.broadcast_to(boxes, (len(regions), *boxes.shape))
    return ImageFeatures(regions, np.full(len(regions), count, np.int32), boxes)
