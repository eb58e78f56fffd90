"""Networks that use the transformers of Hugging Face, for `python -m benchmarks peers`; see `torch_networks`."""

import re
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.torch_encoders import Batch, Section, unit, valid
from benchmarks.torch_networks import Network, PooledVSE, Ranking

NAMED = {'base': 'L-12_H-768_A-12', 'tiny': 'L-2_H-128_A-2'}  # sizes of BERT


def bert(words: int, size: str, dropout: float, **options: Any) -> transformers.BertModel:
    """Returns a BERT of transformers."""
    numbers = re.fullmatch(r'L-(\d+)_H-(\d+)_A-(\d+)', NAMED.get(size, size)).groups()
    layers, hidden, heads = map(int, numbers)
    dropouts = {'hidden_dropout_prob': dropout, 'attention_probs_dropout_prob': dropout}
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        **dropouts,
    )
    return transformers.BertModel(config, **options)


class Pieces(nn.Module):
    """Maps the last states of BERT (VSE-infinity)."""

    def __init__(self, text: Section, words: int, dim: int) -> None:
        super().__init__()
        self.bert = bert(words, text['size'], text['dropout'], add_pooling_layer=False)
        self.linear = nn.Linear(self.bert.config.hidden_size, dim)

    def forward(self, batch: Batch) -> Tensor:
        """Returns a vector of each word piece, [T, L, D]."""
        mask = valid(batch['lengths'], batch['ids'].shape[1])
        return self.linear(self.bert(batch['ids'], attention_mask=mask.long()).last_hidden_state)


class RVSEPlusPlus(PooledVSE):
    """RVSE++, whose captions BERT reads (Li et al., 2023)."""

    words = Pieces


SIZES = {  # keys of the config's towers -> transformers'
    **{'hidden_dim': 'hidden_size', 'mlp_dim': 'intermediate_size', 'num_layers': 'num_hidden_layers'},
    **{'num_heads': 'num_attention_heads', 'activation': 'hidden_act', 'max_length': 'max_position_embeddings'},
    **{'image_size': 'image_size', 'patch_size': 'patch_size'},
}


class CLIP(Network):
    """CLIP of transformers (Radford et al., 2021); scores are divided by the learned temperature."""

    def __init__(self, model: Section, words: int, features: int) -> None:
        super().__init__()
        del features
        text, vision = (
            {SIZES[key]: model[side][key] for key in SIZES if key in model[side]} for side in ('text', 'image')
        )
        text |= {'vocab_size': words, 'eos_token_id': words - 1}
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=model['embed_dim'])
        self.clip = transformers.CLIPModel(config)
        pixels = (torch.tensor(model['image'][name]) for name in ('mean', 'deviation'))
        self.mean, self.deviation = pixels

    @property
    def weights(self) -> nn.Module:
        """The CLIP of transformers."""
        return self.clip

    def encode_image(self, batch: Batch) -> tuple[Tensor]:
        """Encodes uint8 photos as [I, D]."""
        pixels = (batch['pixels'] / 255 - self.mean) / self.deviation
        states = self.clip.vision_model(pixel_values=pixels.permute(0, 3, 1, 2)).pooler_output
        return (unit(self.clip.visual_projection(states)),)

    def encode_text(self, batch: Batch) -> tuple[Tensor]:
        """Encodes captions as [T, D]."""
        return (unit(self.clip.text_projection(self.clip.text_model(input_ids=batch['ids']).pooler_output)),)

    def score(self, images: tuple[Tensor, ...], texts: tuple[Tensor, ...]) -> Tensor:
        """Returns the logits of every image with every caption, [I, T]."""
        return super().score(images, texts) * self.clip.logit_scale.exp()


class RegionEmbeddings(nn.Module):
    """drop(LN(LN(W_f f) + LN(W_l l) + type)) of features f at locations l (UNITER; Chen et al., 2020b)."""

    def __init__(self, features: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.img_linear, self.pos_linear = nn.Linear(features, hidden), nn.Linear(7, hidden)
        self.img_layer_norm, self.pos_layer_norm, self.LayerNorm = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch, token_type: Tensor) -> Tensor:
        """Returns [I, R, H]."""
        features, locations = self.img_linear(batch['regions']), self.pos_linear(batch['locations'])
        total = self.img_layer_norm(features) + self.pos_layer_norm(locations) + token_type
        return self.dropout(self.LayerNorm(total))


class UNITER(Network):
    """UNITER, which trains with the hardest of many candidates, found in evaluation mode (Chen et al., 2020b)."""

    def __init__(self, model: Section, words: int, features: int, num_hard: int, pairs_at_once: int = 64) -> None:
        super().__init__()
        self.num_hard, self.pairs_at_once = num_hard, pairs_at_once
        self.uniter = bert(words, model['size'], model['dropout'])
        hidden = self.uniter.config.hidden_size
        self.uniter.img_embeddings = RegionEmbeddings(features, hidden, model['dropout'])
        self.rank_output = nn.Linear(hidden, 1)

    def to_compile(self) -> list[tuple[nn.Module, str]]:
        """Returns the embeddings, and the reading of pairs."""
        return [(self, 'embed'), (self, 'read')]

    def embed(self, batch: Batch) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Embeds images and captions: vectors [N, K, H] and masks [N, K] of each."""
        token_type = self.uniter.embeddings.token_type_embeddings.weight[1]
        images, texts = self.uniter.img_embeddings(batch, token_type), self.uniter.embeddings(batch['ids'])
        masks = valid(batch['counts'], images.shape[1]), valid(batch['lengths'], texts.shape[1])
        return (images, masks[0]), (texts, masks[1])

    def logits(self, embedded: tuple, images: Tensor, texts: Tensor) -> Tensor:
        """Reads image images[n] with caption texts[n]: [N]."""
        (regions, regions_mask), (words, words_mask) = embedded
        logits = []
        for rows, columns in zip(images.split(self.pairs_at_once), texts.split(self.pairs_at_once), strict=True):
            tokens = torch.cat([words[columns], regions[rows]], dim=1)
            logits.append(self.read(tokens, torch.cat([words_mask[columns], regions_mask[rows]], dim=1)))
        return torch.cat(logits)

    def read(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Reads pairs [N, K, H] with masks [N, K]: logits [N]."""
        states = self.uniter.encoder(tokens, attention_mask=mask[:, None, None]).last_hidden_state
        return self.rank_output(self.uniter.pooler(states))[:, 0]

    @torch.no_grad()
    def choose(self, batch: Batch, queries: int) -> tuple[Tensor, Tensor]:
        """Returns the hardest candidates of the first images, and of the first captions: int [Q, H] each."""
        self.eval()
        embedded, index = self.embed(batch), batch['image_index']
        buckets = index[:queries, None] == index
        query, candidate = torch.ones_like(buckets).nonzero(as_tuple=True)
        scores = [self.logits(embedded, *sides) for sides in ((query, candidate), (candidate, query))]
        self.train()
        return tuple(x.view(buckets.shape).masked_fill(buckets, -torch.inf).topk(self.num_hard).indices for x in scores)

    def rank(self, batch: Batch, same_image: str) -> tuple[Ranking, Ranking]:
        """Ranks the match and the hardest candidates of each query: [B, 1 + H], with the match in column 0."""
        del same_image
        queries = len(batch['ids']) - int(batch['num_extra'])
        rows = torch.arange(queries)[:, None]
        texts, images = (torch.cat([rows, chosen], dim=1) for chosen in self.choose(batch, queries))
        sides = (
            torch.cat([rows.expand_as(texts), images]).flatten(),
            torch.cat([texts, rows.expand_as(images)]).flatten(),
        )
        scores = torch.sigmoid(self.logits(self.embed(batch), *sides)).view(2, *texts.shape)
        positives = torch.zeros_like(texts, dtype=torch.bool)
        positives[:, 0] = True
        return tuple(Ranking(x, positives, ~positives) for x in scores)
