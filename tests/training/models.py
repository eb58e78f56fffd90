"""Small models and configs that are traced in a fraction of the time of the published ones."""

import jax.numpy as jnp
from flax import linen as nn

from jitm.types import TextFormat
from tests.configs.settings import load
from tests.models.test_matchers import DIM, VOCABULARY, make_vse


class WordEncoder(nn.Module):
    """A text encoder that embeds each word."""

    vocab_size: int

    text_format = TextFormat('words')

    @nn.compact
    def __call__(self, texts, train=False):
        return jnp.where(texts.mask[..., None], nn.Embed(self.vocab_size, DIM)(texts.ids), 0)


def small_vse(vocab_size=VOCABULARY, mlp='none'):
    """VSE++ without its GRU."""
    return make_vse(mlp, text_pooling='mean').clone(text=WordEncoder(vocab_size))


def tiny_tags_dc(data):
    """The config of TAGS-DC with a dynamic generator: 5 steps of 8 pairs; 3 of 8 synthetic captions are kept."""
    config = load('tags:tags_dc_single,scenes')
    config['data'] = data | {'train_images': 8}
    config['epochs'], config['length_multiple'] = 1, 24
    config['candidates'] |= {'num_extra': 8, 'num_hard': 3}
    config['masking']['num_views'], config['synthesis'] = 2, config['synthesis'] | {'num_samples': 4, 'num_hard': 3}
    config['members']['target']['init_from'] = ''
    config['run'] |= {'log_every': 2, 'checkpoint_every': 2}
    return config
