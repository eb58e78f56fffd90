"""Measures the time and floating-point operations of the parts of a TAGS-DC training step (Fan et al., 2022).

    python -m benchmarks tags_step                                        # base size, one positive
    python -m benchmarks tags_step --positives 32 --dtype bfloat16        # on an accelerator
    python -m benchmarks tags_step --size large --num_hard 23 --pairs 16

Images, captions and weights are random. Each part is compiled separately and reads pairs as the step does; the
optimizer is excluded. On a CPU only a few pairs of each part are timed unless `--pairs` is given, and the times are
scaled up. Operations are the matrix products of blocks, pooler and heads at the padded length; with a gradient
three times as many, without the recomputation of tiles. Embeddings, which pairs share, and the sampling of words are
timed but not counted. The count of XLA for one pair is printed for comparison (it counts the body of a loop once).
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.members import seconds
from benchmarks.results import Row
from benchmarks.scoring import matmul_gflops
from jitm import configs
from jitm.config.section import build
from jitm.data.pairs.masking import Masking
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.layers.transformer import SIZES, BERTSize
from jitm.models import make as make_lib
from jitm.models.matcher import Matcher
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.training import sections
from jitm.training.objective import DIRECTIONS, make_terms, objective, token_terms
from jitm.training.source import Context, Source, View
from jitm.training.sources.generated import generate_captions
from jitm.training.sources.masked import mask_captions
from jitm.training.sources.shortlist import shortlist
from jitm.types import Batch, Elements, Images, Masked, Pairs, Texts

SETTING = 'tags:tags_dc,base,f30k'
RELEASED_POSITIVES = 256
CASED_WORD_PIECES = 28996
PAIRS_ON_CPU = 8
PARTS = {  # the heads that are applied to each pair, and whether a gradient is taken
    'generate captions': (('mlm',), False),
    'score captions': (('rank',), False),
    'score candidates': (('rank',), False),
    'train on masked words': (('mlm',), True),
    'train on captions': (('rank', 'discriminate', 'correct'), True),
    'train on candidates': (('rank',), True),
}


class Counts(NamedTuple):
    """Sizes per positive.

    Attributes:
      views: K, masked views of its caption.
      captions: K L, generated captions.
      num_hard: m, captions that are kept, and candidates in either direction.
      candidates: negatives in either direction.
    """

    views: int
    captions: int
    num_hard: int
    candidates: int

    def at_most(self, pairs: int, positives: int) -> 'Counts':
        """Limits the pairs of each part (in either direction), but not below the batch's."""
        views, captions, num_hard = min(self.views, pairs), min(self.captions, pairs), min(self.num_hard, pairs - 1)
        return Counts(views, captions, num_hard, min(self.candidates, max(pairs, positives) - 1))

    def pairs(self) -> dict[str, int]:
        """Returns the number of pairs that each part reads."""
        hard, candidates = 1 + self.num_hard, 1 + self.candidates
        pairs = self.views, self.captions, 2 * candidates, self.views, hard, 2 * hard
        return dict(zip(PARTS, pairs, strict=True))


class PartInputs(NamedTuple):
    """Inputs of the parts: a batch, and replacements for the results of earlier parts.

    Attributes:
      batch: The batch with masked captions and extra candidates.
      generated: K L captions of each image.
      hard: m of these captions.
      chosen: The candidates of each query, see `jitm.training.sources.shortlist`.
    """

    batch: Batch
    generated: Synthetic
    hard: Synthetic
    chosen: dict[str, tuple[chex.Array, chex.Array]]


def random_inputs(counts: Counts, positives: int, words: int, regions: int, vocabulary: int) -> PartInputs:
    """Returns random inputs of all parts."""
    rng = np.random.default_rng(0)

    def pairs(count: int) -> Batch:
        features = rng.random((count, regions, 2048), np.float32).astype(np.float16)
        locations = rng.random((count, regions, 7), np.float32)
        lengths = rng.integers(words // 2, words + 1, count).astype(np.int32)
        ids = np.where(np.arange(words) < lengths[:, None], rng.integers(1, vocabulary, (count, words), np.int32), 0)
        images = Images(features, np.full(count, regions, np.int32), locations=locations)
        return Batch(np.int32(0), images, Texts(ids, lengths), np.arange(count, dtype=np.int32))

    batch, hard = pairs(positives), pairs(1 + counts.candidates - positives)
    labelled = rng.random((positives, counts.views, words)) < 0.15
    captions = rng.integers(1, vocabulary, (positives, counts.captions, words), np.int32)
    masked = np.where(labelled, vocabulary - 1, batch.texts.ids[:, None])
    batch = batch.replace(
        drawn={
            'shortlist': (Pairs(hard.images, hard.texts), positives + hard.image_index),
            'masked': (Masked(masked.astype(np.int32), labelled), batch.texts.ids),
        }
    )
    generated = Synthetic(captions, captions != batch.texts.ids[:, None], np.ones(captions.shape[:2], bool))
    hard = jax.tree.map(lambda x: x[:, : counts.num_hard], generated)
    index = rng.integers(0, 1 + counts.candidates, (positives, counts.num_hard))
    return PartInputs(batch, generated, hard, dict.fromkeys(DIRECTIONS, (index, hard.valid)))


def make_parts(model: Matcher, counts: Counts, samples: int) -> dict[str, Callable]:
    """Returns a function `(params, inputs, key)` for each of `PARTS`, with the terms of the paper."""
    config = configs.load(SETTING).to_dict()
    terms = make_terms(config['terms'], build({'terms': config['terms']}, sections.PARTS))
    synthesis = Synthesis(**config['synthesis'] | {'num_samples': samples, 'num_hard': counts.num_hard})
    retrieval = shortlist(0, counts.num_hard, context=Context(terms, 1 + counts.candidates))
    words = token_terms(terms)
    masked = mask_captions(Masking(**config['masking']), {'masked': words.pop('masked')})
    generated = generate_captions(synthesis, words)

    def generate(params, inputs, key):
        keys = jax.random.split(key, len(inputs.batch.image_index))
        return synthesis.generate(model, {'params': params}, inputs.batch, keys)

    def score_captions(params, inputs, key):
        return synthesis.select_hardest(model, {'params': params}, inputs.batch, inputs.generated)

    def score_candidates(params, inputs, key):
        view = View({'model': (model, {'params': params})}, inputs.batch, {}, jnp.int32(0))
        return retrieval.look(view, {'model': key})

    def train(names: Sequence[str], source: Source, chosen: str = '') -> Callable:
        """Returns the gradient of some terms, whose inputs a source scores."""
        selected = {name: terms[name] for name in names}

        def gradient(params, inputs, key):
            def loss(params):
                def score(matcher):
                    images = matcher.encode_image(inputs.batch.images, train=True)
                    texts = matcher.encode_text(inputs.batch.texts, train=True) if source is retrieval else None
                    results = getattr(inputs, chosen) if chosen else None
                    return source.score(matcher, images, texts, inputs.batch, results, True)

                rankings, losses = model.apply({'params': params}, method=score, rngs={'dropout': key})
                return objective(selected, rankings, 0, losses)[0]

            return jax.grad(loss)(params)

        return gradient

    functions = (
        generate,
        score_captions,
        score_candidates,
        train(['masked'], masked),
        train(['synthetic', 'discrimination', 'correction'], generated, 'hard'),
        train(['ranking'], retrieval, 'chosen'),
    )
    return dict(zip(PARTS, functions, strict=True))


def flops_per_pair(size: BERTSize, words: int, regions: int, vocabulary: int, heads: Sequence[str]) -> float:
    """Returns the operations of the matrix products for one pair, in the blocks and in the heads."""
    tokens, hidden = words + regions, size.hidden
    block = 2 * tokens * (4 * hidden**2 + 2 * hidden * size.mlp_dim) + 2 * 2 * tokens**2 * hidden
    word_head = 2 * words * hidden * (hidden + vocabulary)
    head_flops = {'rank': 2 * hidden * (hidden + 1), 'discriminate': 2 * words * hidden * 2}
    return size.layers * block + sum(head_flops.get(head, word_head) for head in heads)


def xla_flops_per_pair(
    model: Matcher, params: chex.ArrayTree, words: int, regions: int, heads: Sequence[str], trained: bool
) -> float:
    """Returns the operations that XLA counts for one pair, or its gradient by parameters and embeddings."""

    def read(params, *vectors):
        sides = [Elements(x, jnp.ones(x.shape[:2], bool)) for x in vectors]
        outputs = model.apply({'params': params}, *sides, heads, method='read_pairs')
        return sum(jnp.sum(x**2) for x in outputs.values())

    hidden = SIZES[model.size].hidden
    sides = [jax.ShapeDtypeStruct((1, count, hidden), jnp.dtype(model.dtype)) for count in (regions, words)]
    function = jax.grad(read, (0, 1, 2)) if trained else read
    return jax.jit(function).lower(params, *sides).cost_analysis()['flops']


def on_one_device(part: Callable) -> Callable:
    """Maps a part, which gathers over devices, over an axis of one device that the first argument has."""
    axes = 0, None, None, None
    return jax.pmap(lambda _, *inputs: part(*inputs), axis_name=parallel.AXIS, in_axes=axes, out_axes=None)


def measure(parts: dict[str, Callable], params: chex.ArrayTree, arrays: PartInputs, rounds: int) -> dict[str, float]:
    """Returns the median time of each part over several rounds."""
    key = jax.random.key(1)
    arrays = jax.device_put(arrays)
    inputs = jnp.zeros(1), params, arrays, key
    compiled = {name: on_one_device(part).lower(*inputs).compile() for name, part in parts.items()}
    times = [{name: seconds(part, *inputs)[0] for name, part in compiled.items()} for _ in range(rounds + 1)]
    return {name: statistics.median(took[name] for took in times[1:]) for name in parts}  # the first round warms up


def check_flags(args: argparse.Namespace, counts: Counts) -> None:
    """Raises a UserError if the sizes contradict each other."""
    if counts.num_hard > min(counts.captions, counts.candidates):
        raise UserError('--num_hard is larger than the number of generated captions or candidates; give a smaller one')
    if counts.candidates < args.positives:
        raise UserError('--candidates is less than --positives, which are candidates of each other; give more')
    if args.pairs is not None and args.pairs < 2:
        raise UserError('--pairs is less than 2, but a positive and a negative are scored together; give 2 or more')


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--size', choices=SIZES, default='base')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--positives', type=int, default=1)
    parser.add_argument('--views', type=int, default=20, help='K, masked views of a caption')
    parser.add_argument('--samples', type=int, default=20, help='L, captions sampled per view')
    parser.add_argument('--num_hard', type=int, default=31, help='m, captions and candidates that are kept')
    parser.add_argument('--candidates', type=int, default=399, help='negatives in each direction')
    parser.add_argument('--words', type=int, default=16, help='word pieces of the longest caption')
    parser.add_argument('--regions', type=int, default=36)
    parser.add_argument('--vocabulary', type=int, default=CASED_WORD_PIECES)
    parser.add_argument(
        '--pairs', type=int, help='pairs of each part that are timed at most (8 on a CPU, otherwise all)'
    )
    parser.add_argument('--rounds', type=int, default=3)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures all parts, then yields a row for each, their sum, and the sum for a released step of 256 positives."""
    counts = Counts(args.views, args.views * args.samples, args.num_hard, args.candidates)
    check_flags(args, counts)
    all_pairs = max(counts.pairs().values())
    timed = counts.at_most(
        args.pairs or (PAIRS_ON_CPU if jax.default_backend() == 'cpu' else all_pairs), args.positives
    )
    config = configs.load(SETTING).model.to_dict() | {'size': args.size, 'dtype': args.dtype}
    model = make_lib.make_model(config, args.vocabulary)
    inputs = random_inputs(timed, args.positives, args.words, args.regions, args.vocabulary)
    first = jax.tree.map(lambda x: x[:1], (inputs.batch.images, inputs.batch.texts))
    params = jax.jit(model.init)(jax.random.key(0), *first)['params']
    product = matmul_gflops()
    took = measure(make_parts(model, timed, args.samples), params, inputs, args.rounds)
    pairs, timed_pairs = counts.pairs(), timed.pairs()
    took = {part: took[part] / args.positives * pairs[part] / timed_pairs[part] for part in PARTS}
    total, operations = sum(took.values()), 0.0
    for part, (heads, trained) in PARTS.items():
        flops = flops_per_pair(SIZES[args.size], args.words, args.regions, args.vocabulary, heads)
        flops *= 3 if trained else 1
        operations += flops * pairs[part]
        counted = xla_flops_per_pair(model, params, args.words, args.regions, heads, trained)
        yield _row(part, pairs[part], timed_pairs[part], flops * pairs[part], took[part], total, product) | {
            'GFLOP/pair': flops / 1e9,
            'counted by XLA': counted / flops,
        }
    for count in (1, RELEASED_POSITIVES):
        numbers = count * sum(pairs.values()), '', count * operations, count * total, count * total
        label = 'all' if count == 1 else f'all, {count} positives'
        yield _row(label, *numbers, product) | {'GFLOP/pair': '', 'counted by XLA': ''}


def _row(part: str, pairs: int, timed: int | str, flops: float, took: float, total: float, product: float) -> Row:
    return {
        'part': part,
        'pairs': pairs,
        'timed': timed,
        'TFLOP': flops / 1e12,
        's': took,
        '% of the time': 100 * took / total,
        'GFLOP/s': flops / took / 1e9,
        '% of the plain product': 100 * flops / took / 1e9 / product,
    }
