"""The shapes of the parameters of models of published sizes."""

import functools

import jax
import numpy as np

from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.configs.settings import load


@functools.cache
def shapes_of(setting, vocab_size=1000):
    """The parameters of the model of a setting, as shapes."""
    section = load(setting)['model']
    edge = section.get('image', {}).get('image_size', 1)
    count = np.ones(1, np.int32)
    texts = Texts(np.ones((1, 3), np.int32), 3 * count)
    regions = {'regions': np.zeros((1, 1, 2048)), 'counts': count, 'locations': np.zeros((1, 1, 7)), 'tags': texts}
    images = Images(**regions, pixels=np.zeros((1, edge, edge, 3), np.uint8))
    return jax.eval_shape(make_model(section, vocab_size).init, jax.random.key(0), images, texts)['params']
