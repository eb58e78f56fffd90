"""BLIP: cosines of vectors as CLIP has, and a transformer that reads the best pairs (Li et al., 2022)."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.models.clip import CLIP
from jitm.models.joint import JointEncoder
from jitm.models.matcher import Matcher
from jitm.types import Images, Texts


class BLIP(CLIP):
    """Scores two unit vectors by their cosine; its `reranker` has the same towers and reads each pair.

    Attributes:
      embed_dim: The size D of the joint space.
      image: A module that maps images to [I, D] and has their `states`, such as `blip.NormalizedViT`.
      text: A module that maps texts to [T, D] and has their `states` with an image, such as `blip.MultimodalBERT`.
    """

    def setup(self):
        """Creates the head of the re-ranking model."""
        super().setup()
        self.itm_head = nn.Dense(2)

    @property
    def reranker(self) -> Matcher:
        """The model that reads each pair, with the same parameters."""
        return ImageTextMatching(self.image, self.text)

    def __call__(self, images: Images, texts: Texts, train: bool = False) -> Array:
        """Scores every image with every text: float32 [I, T]; at initialization applies the head too."""
        if self.is_initializing():
            self.itm_head(self.text.states(texts, self.image.states(images))[:, 0])
        return super().__call__(images, texts, train)


class ImageTextMatching(JointEncoder):
    """Classifies whether a text matches an image: its first token, replaced by `[ENC]`, has attended to the image.

    The score is the logit of a match. The last entry of the vocabulary is `[ENC]`.

    Attributes:
      image, text: See `BLIP`.
    """

    image: nn.Module
    text: nn.Module

    heads = ('itm',)

    def setup(self):
        """Creates the head."""
        self.itm_head = nn.Dense(2)

    def encode_image(self, images: Images, train: bool = False) -> Array:
        """Returns the states of the class token and of the patches, [I, 1 + R, H]."""
        return self.image.states(images)

    def encode_text(self, texts: Texts, train: bool = False) -> Texts:
        """Returns the texts with `[ENC]` in place of the first token; they are read together with an image."""
        ids = jnp.asarray(texts.ids).at[:, 0].set(self.text.vocab_size - 1)
        return Texts(ids, jnp.asarray(texts.lengths))

    def joint_states(self, images: Array, texts: Texts, train: bool = False) -> tuple[Array, Array]:
        """Reads text n with image n; see `JointEncoder`."""
        states = self.text.states(texts, images)
        return states, states[:, 0]

    def apply_head(self, head: str, states: Array, pooled: Array, train: bool) -> Array:
        """See `JointEncoder`; `rank` is the logit of class 1."""
        logits = self.itm_head(pooled)
        return logits if head == 'itm' else logits[:, 1]

    def floats_per_pair(self, images: Array, texts: Texts) -> int:
        """Returns the size of the image's keys, of the attention of words to it or of the hidden layer, the largest."""
        cells = images.shape[1]
        words = texts.ids.shape[1]
        text = self.text
        width = max(images.shape[2], text.hidden_dim)
        return max(cells * width, text.num_heads * words * cells, words * text.mlp_dim)
