"""Visual semantic reasoning network (Li et al., 2019): regions in a graph, read by a GRU, which may write captions."""

import chex
import einops
import jax.numpy as jnp
from flax import linen as nn

from jitm.data.text import END
from jitm.errors import UserError, check_rate
from jitm.layers.captioning import Captioner, next_words
from jitm.layers.graph import RegionGraph
from jitm.layers.linear import product
from jitm.layers.normalization import BatchNorm, l2_normalize
from jitm.layers.pooling import last
from jitm.layers.recurrent import GRU
from jitm.layers.text import GRUEncoder
from jitm.models.matcher import Encoding, Matcher
from jitm.types import Images, Texts, TokenPredictions


class VSRN(Matcher):
    """Regions reason in a graph, a GRU reads them in their order, another the words; the score is the cosine.

    As in the released code, which made the published numbers, and unlike the paper: each feature is normalised over the
    regions, after the graph and for COCO before it too, and for Flickr30K the image vector is batch-normalised. That
    code steps the captioner's parameters twice a batch, having listed them twice; here once.

    Attributes:
      vocab_size: V.
      embed_dim: D of the regions and of the joint space.
      word_dim: size of the word embeddings, the captioner's too.
      graph_layers: how many graph layers.
      normalize_before_graph: gives each feature norm 1 over an image's regions before the graph too (COCO).
      batch_norm: batch-normalises the image vector before its L2 norm (Flickr30K).
      caption: has a captioner, for a term with the loss 'tokens.captioning'.
      caption_dim: size of the captioner's states.
      caption_dropout: rate.
      caption_length: longer captions are cut to so many words, `<start>` and `<end>` included.
    """

    vocab_size: int
    embed_dim: int
    word_dim: int
    graph_layers: int
    normalize_before_graph: bool
    batch_norm: bool
    caption: bool
    caption_dim: int
    caption_dropout: float
    caption_length: int

    text_format = GRUEncoder.text_format

    def setup(self):
        """Makes the layers of both sides and of the captioner."""
        for key in ('embed_dim', 'word_dim', 'caption_dim'):
            if getattr(self, key) < 1:
                raise UserError(f"config key 'model.{key}' is {getattr(self, key)}; it must be at least 1")
        check_rate(self.caption_dropout, 'model.caption_dropout')
        if self.graph_layers < 0:
            raise UserError(f"config key 'model.graph_layers' is {self.graph_layers}; it must not be negative")
        if self.caption_length < 2:
            raise UserError(f"config key 'model.caption_length' is {self.caption_length}; it must be at least 2")
        self.image_fc = nn.Dense(self.embed_dim, kernel_init=nn.initializers.xavier_uniform())
        self.graph = [RegionGraph() for _ in range(self.graph_layers)]
        self.region_gru = GRU(self.embed_dim)
        if self.batch_norm:
            self.norm = BatchNorm()
        self.text = GRUEncoder(self.vocab_size, self.embed_dim, self.word_dim, bidirectional=False, dropout=0.0)
        if self.caption:
            self.captioner = Captioner(self.vocab_size, self.word_dim, self.caption_dim, self.caption_dropout)

    scores_products = True

    def vectors(self, encoding: Encoding) -> chex.Array:
        """The vectors [N, D] of encoded images or texts."""
        return encoding['vector'] if isinstance(encoding, dict) else encoding

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes [I, R, F] regions as `vector` [I, D]; in training, for the captioner, as [I, R, D] `regions` too."""
        if images.kept is not None:
            raise UserError("config key 'augmentation.num_views' must be 1 for VSRN: it reads regions one by one")
        mask = images.mask
        real = einops.rearrange(mask, 'i r -> i r 1')
        regions = self.image_fc(images.regions.astype(jnp.float32))
        if self.normalize_before_graph:
            regions = l2_normalize(jnp.where(real, regions, 0), axis=1)
        for layer in self.graph:
            regions = layer(regions, mask, train)
        regions = l2_normalize(jnp.where(real, regions, 0), axis=1)
        vector = last(self.region_gru(regions, images.counts), mask)
        if self.batch_norm:
            vector = self.norm(vector, train=train)
        encoding = {'vector': l2_normalize(vector)}
        if train and self.caption:
            encoding |= {'regions': regions, 'counts': images.counts}
        return encoding

    def encode_text(self, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes [T, L] words as [T, D]."""
        return l2_normalize(last(self.text(texts, train), texts.mask))

    def similarity(self, images: Encoding, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [I, D] with [T, D]: [I, T]."""
        return product('id,td->it', images['vector'], texts)

    def similarity_pairwise(self, images: Encoding, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [N, D] with [N, D]: [N]."""
        return product('nd,nd->n', images['vector'], texts)

    def predict_tokens(self, images: Encoding, texts: Texts, train: bool = False) -> dict[str, TokenPredictions]:
        """Predicts every word of a caption from those before it and its image, as `captioning`."""
        if not self.caption:
            return {}
        words, labels, mask = next_words(texts, self.caption_length, END)
        logits = self.captioner(images['regions'], images['counts'], words, train)
        return {'captioning': TokenPredictions(logits, labels, mask)}
