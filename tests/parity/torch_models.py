"""Networks of image-text matching in PyTorch, written from their formulas, without padding and without dropout.

A network maps lists of images and captions to scores [I, T]. An image is a tensor of regions [R, F]; for UNITER a tuple
of them and their locations, for OSCAR of regions with boxes and the ids of tags. A caption is a tensor of ids [L].

Parameters have the names of the authors' checkpoints, where `model` is a list: images, texts, similarity. The
similarities of `benchmarks.torch_loops` are the reference of their models.
"""

from collections.abc import Sequence

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.models.bert.modeling_bert import BertLMPredictionHead

from benchmarks import torch_loops as loops
from benchmarks.torch_loops import attention, cosine
from benchmarks.torch_networks import move_thresholds

FEATURES, DIM, WORD_DIM, ALIGNMENT_DIM, BLOCKS = 12, 16, 10, 8, 4
WORDS, SLOTS = 12, 4  # the number of words, and the largest number of regions

Tensors = Sequence[Tensor]


def unit(x: Tensor, dim: int = -1) -> Tensor:
    return F.normalize(x, dim=dim)


def read(gru: nn.GRU, sequence: Tensor) -> Tensor:
    """Returns the state after each element of [L, D], averaged over the directions: [L, H]."""
    return gru(sequence)[0].unflatten(-1, (-1, gru.hidden_size)).mean(-2)


class Regions(nn.Module):
    """Maps each region to a vector."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(FEATURES, DIM)

    def forward(self, images: Tensors) -> Tensors:
        return [self.fc(regions) for regions in images]


class Words(nn.Module):
    """Reads embedded words with a GRU, which has a name."""

    def __init__(self, bidirectional: bool = True, gru: str = 'rnn'):
        super().__init__()
        self.embed, self.gru = nn.Embedding(WORDS, WORD_DIM), gru
        self.add_module(gru, nn.GRU(WORD_DIM, DIM, bidirectional=bidirectional))

    def forward(self, captions: Tensors) -> Tensors:
        return [read(self.get_submodule(self.gru), self.embed(ids)) for ids in captions]


class Network(nn.Module):
    """Scores each image with each caption by `score`, a function of what the first two modules return for them."""

    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.model = nn.ModuleList(modules)

    def encode(self, images: Tensors, captions: Tensors) -> tuple[Tensors, Tensors]:
        return self.model[0](images), self.model[1](captions)

    def forward(self, images: Tensors, captions: Tensors) -> Tensor:
        images, texts = self.encode(images, captions)
        return torch.stack([torch.stack([self.score(image, text) for text in texts]) for image in images])


# Each side is one vector.


class VSE(Network):
    """VSE++ and VSE0: the mean of the regions, and the last state of the words (Faghri et al., 2018)."""

    def __init__(self, normalize: bool = True, absolute: bool = False):
        super().__init__(Regions(), Words(bidirectional=False))
        self.normalize, self.absolute = normalize, absolute

    def score(self, regions: Tensor, words: Tensor) -> Tensor:
        image, text = regions.mean(0), unit(words[-1])
        image = unit(image) if self.normalize else image
        return self.compare(image.abs(), text.abs()) if self.absolute else self.compare(image, text)

    def compare(self, image: Tensor, text: Tensor) -> Tensor:
        return image @ text


class OrderEmbedding(VSE):
    """Order++ and Order0: the norm of what violates the order (section 3.7)."""

    def compare(self, image: Tensor, text: Tensor) -> Tensor:
        return -torch.linalg.vector_norm(F.relu(text - image))


class GPO(nn.Module):
    """Sorts the values of each dimension and weighs them by their rank (VSE-infinity; Chen et al., 2021)."""

    def __init__(self, dim: int = 32):
        super().__init__()
        self.gru, self.linear = nn.GRU(dim, dim, bidirectional=True), nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        frequencies = 1e4 ** -torch.arange(0, 1, 2 / self.gru.input_size, dtype=x.dtype)
        angles = torch.arange(len(x))[:, None] * frequencies
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        weights = torch.softmax(self.linear(read(self.gru, positions)) / 0.1, dim=0)
        return torch.sum(weights * x.sort(dim=0, descending=True).values, dim=0)


class ElementAttention(nn.Linear):
    """Weighs the values of each dimension by a softmax over the set (ESA; Zhu et al., 2023)."""

    def __init__(self):
        super().__init__(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(torch.softmax(super().forward(x), dim=0) * x, dim=0)


class MLP(nn.Module):
    """W_2 relu(BN(W_1 x)); the second normalization that checkpoints have is never applied."""

    def __init__(self, inputs: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inputs, DIM // 2), nn.Linear(DIM // 2, DIM)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(DIM // 2), nn.BatchNorm1d(DIM)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](F.relu(self.bns[0](self.layers[0](x))))


class MLPRegions(Regions):
    """Adds an MLP of a region, or of the vector it is mapped to, to this vector, or takes the MLP's output alone.

    As released, images are padded with zeros, which the batch normalization reads.
    """

    def __init__(self, on_input: bool = False, residual: bool = True):
        super().__init__()
        self.mlp, self.on_input, self.residual = MLP(FEATURES if on_input else DIM), on_input, residual

    def forward(self, images: Tensors) -> Tensors:
        regions = pad_sequence(images, batch_first=True)
        linear = self.fc(regions)
        deep = self.mlp((regions if self.on_input else linear).flatten(0, 1)).view_as(linear)
        vectors = linear + deep if self.residual else deep
        return [x[: len(image)] for x, image in zip(vectors, images, strict=True)]


def bert() -> transformers.BertModel:
    sizes = {'hidden_size': 128, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 512}
    dropout = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
    return transformers.BertModel(transformers.BertConfig(vocab_size=WORDS, **sizes, **dropout))


class Pieces(nn.Module):
    """Maps the last states of BERT."""

    def __init__(self):
        super().__init__()
        self.bert = bert()
        self.linear = nn.Linear(self.bert.config.hidden_size, DIM)

    def forward(self, captions: Tensors) -> Tensors:
        return [self.linear(self.bert(ids[None]).last_hidden_state[0]) for ids in captions]


class PooledVSE(Network):
    """VSE(FC), VSE(MLP), RVSE(MLP), RVSE++ (Li et al., 2023), VSE-infinity and ESA: both sides are pooled alike."""

    def __init__(self, images: nn.Module, texts: nn.Module, pooling: str = 'gpool'):
        super().__init__(images, texts)
        self.pooling = pooling
        for module in self.model:
            module.add_module(pooling, {'gpool': GPO, 'linear1': ElementAttention}[pooling]())

    def encode(self, images: Tensors, captions: Tensors) -> tuple[Tensors, ...]:
        sides = zip(self.model, super().encode(images, captions), strict=True)
        return tuple([unit(module.get_submodule(self.pooling)(x)) for x in vectors] for module, vectors in sides)

    def score(self, image: Tensor, text: Tensor) -> Tensor:
        return image @ text


class Graph(nn.Module):
    """V + BN(W R g(V)) with R = theta(V) phi(V)' / N, of the N regions of each image (VSRN; Li et al., 2019)."""

    def __init__(self):
        super().__init__()
        self.g, self.theta, self.phi = (nn.Linear(DIM, DIM) for _ in range(3))
        self.W = nn.Sequential(nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM))

    def forward(self, images: Tensors) -> Tensors:
        mixed = [self.theta(v) @ self.phi(v).T @ self.g(v) / len(v) for v in images]
        updates = self.W(torch.cat(mixed)).split([len(v) for v in images])
        return [v + update for v, update in zip(images, updates, strict=True)]


class GraphRegions(Regions):
    """Relates the regions in graphs and reads them with a GRU, as released for Flickr30K or for COCO."""

    def __init__(self, coco: bool, layers: int = 2):
        super().__init__()
        self.graphs = [f'Rs_GCN_{n + 1}' for n in range(layers)]
        for name in self.graphs:
            self.add_module(name, Graph())
        self.img_rnn, self.bn = nn.GRU(DIM, DIM), None if coco else nn.BatchNorm1d(DIM)

    def forward(self, images: Tensors) -> Tensor:
        vectors = super().forward(images)
        vectors = vectors if self.bn else [unit(v, 0) for v in vectors]
        for name in self.graphs:
            vectors = self.get_submodule(name)(vectors)
        last = torch.stack([read(self.img_rnn, unit(v, 0))[-1] for v in vectors])
        return unit(self.bn(last) if self.bn else last)


class VSRN(Network):
    """The cosine of the image's vector and the last state of the words; without the captioner."""

    def __init__(self, coco: bool):
        super().__init__(GraphRegions(coco), Words(bidirectional=False))

    def score(self, image: Tensor, words: Tensor) -> Tensor:
        return image @ unit(words[-1])


# Words and regions are unit vectors that attend to each other.


class CrossAttention(Network):
    """Scores unit vectors of regions [R, D] and of words [L, D] by a loop over captions."""

    def __init__(self, *similarity: nn.Module, gru: str = 'rnn'):
        texts = Words(gru=gru)
        super().__init__(Regions(), texts, *similarity)

    def encode(self, images: Tensors, captions: Tensors) -> tuple[Tensors, ...]:
        return tuple([unit(x) for x in vectors] for vectors in super().encode(images, captions))

    def score(self, regions: Tensor, words: Tensor) -> Tensor:
        return self.model[2].score_caption(words[None], regions[None])[0]


class NAAF(CrossAttention):
    """Adds negative evidence of words without a matching region (Zhang et al., 2022), with mined thresholds."""

    def __init__(self, minimum_words: int, alpha: float = 2.0):
        super().__init__(loops.NAAF())
        self.minimum_words, self.alpha = minimum_words, alpha
        self.opt = nn.Module()
        self.opt.register_buffer('thres', torch.tensor(0.0))
        self.opt.register_buffer('thres_safe', torch.tensor(0.1))

    def forward(self, images: Tensors, captions: Tensors) -> Tensor:
        if self.training:
            return self.score_and_mine(*self.encode(images, captions))
        return super().forward(images, captions)

    def score(self, regions: Tensor, words: Tensor) -> Tensor:
        return self.compare(regions, words, self.opt.thres_safe)

    def compare(self, regions: Tensor, words: Tensor, threshold: Tensor) -> Tensor:
        self.model[2].threshold = threshold
        return super().score(regions, words)

    def score_and_mine(self, images: Tensors, texts: Tensors) -> Tensor:
        """Scores the captions in order; those before it, whose image ranks first, decide the threshold of each."""
        thresholds, columns, words = texts[0].new_zeros(2), [], texts[0].new_zeros(2, 0)
        for n, text in enumerate(texts):
            scores = torch.stack([self.compare(image, text, thresholds[0]) for image in images])
            columns.append(scores)
            if scores.argmax() == n:
                pair = [(text @ images[row].T).amax(1) for row in (n, scores.argmin())]
                words = torch.cat([words, torch.stack(pair).detach()], dim=1)
            if words.shape[1] > self.minimum_words:
                thresholds = move_thresholds(thresholds, words, self.alpha)
        self.opt.thres, self.opt.thres_safe = thresholds
        return torch.stack(columns, dim=1)


class SGRAF(CrossAttention):
    """SGR or SAF, whose batch normalization reads one caption at a time, the longest first."""

    def __init__(self, reasoning: str):
        super().__init__(loops.SGRAF(DIM, SLOTS, reasoning, ALIGNMENT_DIM, dropout=0.0), gru='cap_rnn')
        for name, weight in self.named_parameters():
            if 'SGR_module' in name and weight.ndim == 2:  # so that the steps do not make all alignments equal
                nn.init.xavier_uniform_(weight, gain=2.0)

    def forward(self, images: Tensors, captions: Tensors) -> Tensor:
        images, texts = self.encode(images, captions)
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
        lengths = torch.tensor([len(texts[n]) for n in order])
        return self.model[2](torch.stack(images), [texts[n] for n in order], lengths)[:, torch.tensor(order).argsort()]


class IMRAM(CrossAttention):
    """Attends in several steps, between which a gate mixes each query with its context (Chen et al., 2020c)."""

    def __init__(self, directions: Sequence[str], steps: int = 3, scale: float = 9.0):
        super().__init__()
        self.directions, self.steps, self.scale = directions, steps, scale
        for name in ('gate_t2i', 'linear_t2i', 'gate_i2t', 'linear_i2t'):
            self.model.add_module(name, nn.Linear(2 * DIM, DIM))

    def score(self, regions: Tensor, words: Tensor) -> Tensor:
        sides = {'t2i': (words, regions), 'i2t': (regions, words)}
        return sum(self.score_in(direction, *sides[direction]) for direction in self.directions)

    def score_in(self, direction: str, queries: Tensor, context: Tensor) -> Tensor:
        gate, linear = (self.model.get_submodule(f'{name}_{direction}') for name in ('gate', 'linear'))
        total, current = 0, queries
        for _ in range(self.steps):
            attended = attention(current, context, self.scale) @ context
            total = total + cosine(queries, attended).mean()
            pair = torch.cat([current, attended], dim=-1)
            current = torch.lerp(torch.tanh(linear(pair)), current, torch.sigmoid(gate(pair)))
        return total


class Readout(nn.Module):
    """Maps the cosines of blocks to a number; the last two layers are weight-normalized."""

    def __init__(self, hidden: int = 32):
        super().__init__()
        self.kernels = nn.Linear(BLOCKS, hidden, bias=False)
        self.hidden, self.score = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.lengths = nn.ParameterDict({'hidden': torch.ones(hidden), 'score': torch.ones(1)})

    def forward(self, x: Tensor) -> Tensor:
        return self.normalized('score', torch.tanh(self.normalized('hidden', self.kernels(x))))

    def normalized(self, name: str, x: Tensor) -> Tensor:
        layer = self.get_submodule(name)
        return F.linear(x, self.lengths[name][:, None] * unit(layer.weight), layer.bias)


class GSMN(CrossAttention):
    """Averages what a network makes of the cosines of blocks, in both directions (Liu et al., 2020), without graphs."""

    def __init__(self, scale: float = 20.0):
        super().__init__(Readout(), Readout())
        self.scale = scale

    def score(self, regions: Tensor, words: Tensor) -> Tensor:
        return self.nodes(self.model[2], words, regions).mean() + self.nodes(self.model[3], regions, words).mean()

    def nodes(self, readout: Readout, queries: Tensor, context: Tensor) -> Tensor:
        attended = attention(queries, context, self.scale) @ context
        return readout(cosine(*(x.unflatten(-1, (BLOCKS, -1)) for x in (queries, attended))))


# One transformer reads an image together with a caption.


class JointEncoder(nn.Module):
    """Scores each image with each caption by `logit`, in training by its sigmoid."""

    def forward(self, images: Sequence[tuple[Tensor, ...]], captions: Tensors) -> Tensor:
        logits = torch.stack([torch.stack([self.logit(image, ids) for ids in captions]) for image in images])
        return torch.sigmoid(logits) if self.training else logits


class RegionEmbeddings(nn.Module):
    """LN(LN(W_f f) + LN(W_l l) + type) of features f at locations l (UNITER, section 3.1; Chen et al., 2020)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.img_linear, self.pos_linear = nn.Linear(FEATURES, hidden), nn.Linear(7, hidden)
        self.img_layer_norm, self.pos_layer_norm, self.LayerNorm = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(3))

    def forward(self, features: Tensor, locations: Tensor, token_type: Tensor) -> Tensor:
        features, locations = self.img_linear(features), self.pos_linear(locations)
        return self.LayerNorm(self.img_layer_norm(features) + self.pos_layer_norm(locations) + token_type)


class UNITER(JointEncoder):
    """UNITER with all heads of TAGS-DC (Fan et al., 2022)."""

    def __init__(self):
        super().__init__()
        self.uniter = bert()
        hidden = self.uniter.config.hidden_size
        self.uniter.img_embeddings = RegionEmbeddings(hidden)
        self.rank_output, self.itm_output, self.disc_output = (nn.Linear(hidden, size) for size in (1, 2, 2))
        self.cls, self.correction_output = (nn.ModuleDict({'predictions': self.token_head()}) for _ in range(2))

    def token_head(self) -> nn.Module:
        head = BertLMPredictionHead(self.uniter.config)
        head.decoder.weight, head.decoder.bias = self.uniter.embeddings.word_embeddings.weight, head.bias
        return head

    def states(self, image: tuple[Tensor, ...], ids: Tensor) -> Tensor:
        """Returns the last states of words and regions: [1, L + R, H]."""
        token_type = self.uniter.embeddings.token_type_embeddings.weight[1]
        tokens = [self.uniter.embeddings(ids[None]), self.uniter.img_embeddings(*image, token_type)[None]]
        return self.uniter.encoder(torch.cat(tokens, dim=1)).last_hidden_state

    def logit(self, image: tuple[Tensor, ...], ids: Tensor) -> Tensor:
        return self.rank_output(self.uniter.pooler(self.states(image, ids)))[0, 0]

    def heads(self, image: tuple[Tensor, ...], ids: Tensor) -> dict[str, Tensor]:
        """Returns the logits of a match, and those for each word, by the names of our heads."""
        states = self.states(image, ids)
        heads = {'mlm': self.cls['predictions'], 'correct': self.correction_output['predictions']}
        heads |= {'discriminate': self.disc_output}
        of_words = {name: head(states[0, : len(ids)]) for name, head in heads.items()}
        return of_words | {'itm': self.itm_output(self.uniter.pooler(states))[0]}


class OSCAR(JointEncoder):
    """OSCAR: caption and tags are two segments, which the regions with their boxes follow (Li et al., 2020)."""

    def __init__(self):
        super().__init__()
        self.bert = bert()
        hidden = self.bert.config.hidden_size
        self.bert.img_embedding = nn.Linear(FEATURES + 6, hidden)
        self.bert.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)
        self.classifier = nn.Linear(hidden, 2)

    def logit(self, image: tuple[Tensor, ...], ids: Tensor) -> Tensor:
        regions, tags = image
        segments = torch.tensor([0] * len(ids) + [1] * len(tags))
        words = self.bert.embeddings(torch.cat([ids, tags])[None], token_type_ids=segments[None])
        regions = self.bert.LayerNorm(self.bert.img_embedding(regions))[None]
        states = self.bert.encoder(torch.cat([words, regions], dim=1)).last_hidden_state
        mismatch, match = self.classifier(self.bert.pooler(states))[0]
        return match - mismatch
