"""OSCAR: one BERT reads a caption, the object tags of an image and its regions (Li et al., 2020)."""

import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn
from flax import struct

from jitm.layers.blocks import layer_norm
from jitm.layers.transformer import size_named
from jitm.models.joint import JointBERT, masked_elements
from jitm.types import DTYPES, Elements, Images, TextFormat, Texts

MAX_WORDS = 70  # caption, tags and special tokens together, as in the released code
BOX_NUMBERS = 6  # x1 y1 x2 y2 width height, the first of `Images.locations`


class TaggedRegions(struct.PyTreeNode):
    """N encoded images.

    Attributes:
      regions: The embedded regions [N, R, H].
      tags: The words of the object tags; see `Images`.
    """

    regions: Elements
    tags: Texts


class OSCAR(JointBERT):
    """Classifies whether a caption matches an image, from the caption, the image's object tags and its regions.

    The score is the difference of the two logits in evaluation and the probability of a match in training, for
    the released loss `ranking.matching_cross_entropy`. Tags follow the caption, at the next positions and as the
    second segment, and are cut where both have more than `MAX_WORDS` word pieces.

    Attributes:
      vocab_size, size, dropout, dtype: See `JointBERT`.
      image_norm: Normalizes embedded regions, `use_img_layernorm` in the config.json of released weights.
    """

    image_norm: bool

    text_format = TextFormat(None, MAX_WORDS)
    reads = ('regions', 'locations', 'tags')
    heads = ('itm',)

    def setup(self):
        """Checks the options and creates the layers."""
        super().setup()
        size = size_named(self.size)
        dtype = DTYPES[self.dtype]
        self.region_features = nn.Dense(size.hidden, dtype=dtype, kernel_init=size.kernel_init)
        self.region_norm = layer_norm(dtype)
        self.drop = nn.Dropout(self.dropout)
        self.itm_head = nn.Dense(2, kernel_init=size.kernel_init)

    def encode_image(self, images: Images, train: bool = False) -> TaggedRegions:
        """Embeds [I, R, F] regions and their boxes as [I, R, H]; tags stay words."""
        self.check_images(images)
        boxes = images.locations[..., :BOX_NUMBERS]
        regions = self.region_features(jnp.concatenate([images.regions.astype(jnp.float32), boxes], axis=-1))
        regions = self.drop(self.region_norm(regions) if self.image_norm else regions, deterministic=not train)
        return TaggedRegions(masked_elements(regions, images.mask), jax.tree.map(jnp.asarray, images.tags))

    def encode_text(self, texts: Texts, train: bool = False) -> Texts:
        """Returns the words, which are embedded together with the tags of an image."""
        return Texts(jnp.asarray(texts.ids), jnp.asarray(texts.lengths))

    def join(self, images: TaggedRegions, texts: Texts, train: bool = False) -> tuple[Elements, Elements]:
        """Embeds the captions with the tags of their images; see `JointBERT`."""
        words = append_tags(texts, images.tags)
        segments = jnp.arange(words.ids.shape[1]) >= texts.lengths[:, None]
        embedded = self.bert.embeddings(words.ids, train, segments.astype(jnp.int32))
        return Elements(embedded, words.mask), images.regions

    def apply_head(self, head: str, states: Array, pooled: Array, train: bool) -> Array:
        """See `JointBERT`."""
        if head == 'itm':
            return self.itm_head(pooled)
        logits = self.itm_head(self.drop(pooled, deterministic=not train))
        scores = logits[:, 1] - logits[:, 0]
        return self.training_scores(scores) if train else scores

    def sequence_length(self, images: TaggedRegions, texts: Texts) -> int:
        """Returns R and the length of captions with tags."""
        return images.regions.mask.shape[1] + min(texts.ids.shape[1] + images.tags.ids.shape[1], MAX_WORDS)


def append_tags(captions: Texts, tags: Texts) -> Texts:
    """Joins N captions and the tags of N images, with at most `MAX_WORDS` ids together.

    Tags are cut; their end token, which all but empty tags have, is kept. Released code exceeds the maximum by cutting
    no tags from a caption of exactly this length; here such a caption has none.
    """
    slots = jnp.arange(min(captions.ids.shape[1] + tags.ids.shape[1], MAX_WORDS))
    starts = captions.lengths[:, None]
    counts = tags.lengths[:, None]
    lengths = jnp.minimum(starts + counts, MAX_WORDS)
    index = jnp.where(slots == lengths - 1, counts - 1, slots - starts)
    appended = jnp.take_along_axis(tags.ids, index, axis=1, mode='clip')
    words = jnp.pad(captions.ids, [(0, 0), (0, len(slots) - captions.ids.shape[1])])
    ids = jnp.where(slots < starts, words, jnp.where(slots < lengths, appended, 0))
    return Texts(ids, lengths[:, 0])
