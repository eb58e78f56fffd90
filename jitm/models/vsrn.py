"""Visual semantic reasoning network (VSRN; Li et al., 2019): a region graph, a GRU and an optional captioner."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.data.text.word_level import END
from jitm.errors import UserError
from jitm.layers.captioning import Captioner, next_words
from jitm.layers.graph import RegionGraph
from jitm.layers.normalization import BatchNorm, l2_normalize, zero_padding
from jitm.layers.pooling import last
from jitm.layers.sequences import GRU
from jitm.layers.text import GRUEncoder
from jitm.models.matcher import DualEncoder, Encoding
from jitm.types import Count, Images, Index, Rate, SequenceLength, TextFormat, Texts, TokenPredictions


class VSRN(DualEncoder):
    """Relates the regions in a graph, then a GRU reads them in order and another one the words; the score is a cosine.

    This follows the released code, which produced the published numbers. Unlike in the paper, each feature is
    normalized over the regions, after the graph and for COCO also before it, and for Flickr30K the image vector is
    batch-normalized. The released code lists the captioner's parameters twice and so updates them twice per batch; here
    they are updated once.

    Attributes:
      vocab_size: The number of words V.
      embed_dim: The size D of the regions and of the joint space.
      word_dim: The size of the word embeddings, also of the captioner's.
      graph_layers: The number of graph layers.
      normalize_before_graph: Also L2-normalizes each feature over an image's regions before the graph (COCO).
      batch_norm: Batch-normalizes the image vector before its L2 norm (Flickr30K).
      caption: Adds a captioner, for a term with the loss 'tokens.captioning'.
      caption_dim: The size of the captioner's states.
      caption_dropout: The rate of the captioner's dropout.
      caption_length: The number of words, `<start>` and `<end>` included, to which longer captions are truncated.
    """

    vocab_size: int
    embed_dim: Count
    word_dim: Count
    graph_layers: Index
    normalize_before_graph: bool
    batch_norm: bool
    caption: bool
    caption_dim: Count
    caption_dropout: Rate
    caption_length: SequenceLength

    reads = ('regions',)

    @property
    def scale_matters(self) -> bool:
        """Whether the graph, whose messages are batch-normalized, reads features that are not normalized."""
        return not self.normalize_before_graph

    @property
    def text_format(self) -> TextFormat:
        """Words; the captioner, which reads all of the padding, takes longer then."""
        return TextFormat('words', skips_padding=not self.caption)

    def setup(self):
        """Creates the layers of both encoders and of the captioner."""
        self.image_fc = nn.Dense(self.embed_dim, kernel_init=nn.initializers.xavier_uniform())
        self.graph = [RegionGraph() for _ in range(self.graph_layers)]
        self.region_gru = GRU(self.embed_dim)
        if self.batch_norm:
            self.norm = BatchNorm()
        self.text = GRUEncoder(self.vocab_size, self.embed_dim, self.word_dim, bidirectional=False, dropout=0.0)
        if self.caption:
            self.captioner = Captioner(self.vocab_size, self.word_dim, self.caption_dim, self.caption_dropout)

    def vectors(self, encoding: Encoding) -> Array:
        """Returns the vectors [N, D] of N encoded images or texts."""
        return encoding['vector'] if isinstance(encoding, dict) else encoding

    def encode_image(self, images: Images, train: bool = False) -> Encoding:
        """Encodes [I, R, F] regions as `vector` [I, D]; in training also as `regions` [I, R, D] for the captioner."""
        if images.kept is not None:
            raise UserError("config key 'augmentation.num_views' must be 1: VSRN reads one view of each image")

        # Relate the regions.
        mask = images.mask
        regions = self.image_fc(images.regions.astype(jnp.float32))
        if self.normalize_before_graph:
            regions = l2_normalize(zero_padding(regions, mask), axis=1)
        for layer in self.graph:
            regions = layer(regions, mask, train)
        regions = l2_normalize(zero_padding(regions, mask), axis=1)

        # Read them in order.
        vector = last(self.region_gru(regions, images.counts), mask)
        if self.batch_norm:
            vector = self.norm(vector, train=train)
        encoding = {'vector': l2_normalize(vector)}
        if train and self.caption:
            encoding |= {'regions': regions, 'counts': images.counts}
        return encoding

    def encode_text(self, texts: Texts, train: bool = False) -> Array:
        """Encodes [T, L] words as [T, D]."""
        return l2_normalize(last(self.text(texts, train), texts.mask))

    def predict_tokens(self, images: Encoding, texts: Texts, train: bool = False) -> dict[str, TokenPredictions]:
        """Predicts each word of a caption from the words before it and its image, for the loss `captioning`."""
        if not self.caption:
            return {}
        words, labels, mask = next_words(texts, self.caption_length, END)
        logits = self.captioner(images['regions'], images['counts'], words, train)
        return {'captioning': TokenPredictions(logits, labels, mask)}
