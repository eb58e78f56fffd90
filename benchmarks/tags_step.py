"""Times the parts of a step of TAGS-DC, and counts the floating-point operations that they need (paper 001).

    python -m benchmarks.tags_step                                        # base size, one positive
    python -m benchmarks.tags_step --positives 32 --dtype bfloat16        # on an accelerator
    python -m benchmarks.tags_step --size large --hardest 23 --pairs 16

Images, sentences and weights are drawn. Each part is compiled by itself and reads pairs as the step does; the optimizer
is left out. On a CPU only some pairs of each part are timed unless `--pairs` says so, and their times scaled to all.
Operations are those of the products: of the blocks, the pooler and the heads, at the padded length; three times as many
where there is a gradient, although what a tile keeps is computed again for it. Embeddings, which pairs share, and the
drawing of words are timed, not counted. XLA's count beside it is of one pair (it counts what is in a loop once).
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.bert_step import made_up_batch
from benchmarks.members import seconds
from benchmarks.scoring import matmul_gflops
from configs.tags import tags_dc_f30k
from jitm import config as config_lib
from jitm.layers.transformer import SIZES, BERTSize
from jitm.models.matcher import Matcher
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.training.candidates import Shortlist
from jitm.training.generated import GENERATED, masked_losses, score_synthetic
from jitm.training.objective import DIRECTIONS, make_terms, objective
from jitm.types import Batch, Elements, Masked, Pairs

RELEASED_POSITIVES = 256
CASED_WORD_PIECES = 28996
PAIRS_ON_CPU = 8
PARTS = {  # what it asks of the model about each pair, and whether it takes a gradient
    'write sentences': (('mlm',), False),
    'score sentences': (('rank',), False),
    'score candidates': (('rank',), False),
    'train on masked words': (('mlm',), True),
    'train on sentences': (('rank', 'discriminate', 'correct'), True),
    'train on candidates': (('rank',), True),
}


class Counts(NamedTuple):
    """How much there is for each positive.

    Attributes:
      variants: K, masked ones of its sentence.
      sentences: K L, written.
      hardest: m, kept of the sentences, and of the candidates in either direction.
      candidates: in either direction, the positive not among them.
    """

    variants: int
    sentences: int
    hardest: int
    candidates: int

    def at_most(self, pairs: int, positives: int) -> 'Counts':
        """With so many pairs in each part (in either direction), or those of the batch if these are more."""
        variants, sentences, hardest = (
            min(self.variants, pairs),
            min(self.sentences, pairs),
            min(self.hardest, pairs - 1),
        )
        return Counts(variants, sentences, hardest, min(self.candidates, max(pairs, positives) - 1))

    def pairs(self) -> dict[str, int]:
        """The pairs that each part reads."""
        kept, listed = 1 + self.hardest, 1 + self.candidates
        return dict(zip(PARTS, (self.variants, self.sentences, 2 * listed, self.variants, kept, 2 * kept), strict=True))


class Given(NamedTuple):
    """What the parts are given: a batch, and what earlier parts would have made of it.

    Attributes:
      batch: with masked sentences and a pool.
      written: N sentences of each.
      kept: the m of them.
      chosen: see `Shortlist.choose`.
    """

    batch: Batch
    written: Synthetic
    kept: Synthetic
    chosen: dict[str, tuple[chex.Array, chex.Array]]


def make_up(counts: Counts, positives: int, words: int, regions: int, vocabulary: int) -> Given:
    """Draws a batch and sentences, no matter which."""
    rng = np.random.default_rng(0)

    def pairs(count: int) -> Batch:
        batch = made_up_batch(count, words, regions, vocabulary)
        return batch.replace(images=batch.images.replace(locations=rng.random((count, regions, 7), np.float32)))

    batch, others = pairs(positives), pairs(1 + counts.candidates - positives)
    labelled = rng.random((positives, counts.variants, words)) < 0.15
    sentences = rng.integers(1, vocabulary, (positives, counts.sentences, words), np.int32)
    batch = batch.replace(
        num_extra=Pairs(others.images, others.texts),
        extra_index=positives + others.image_index,
        masked=Masked(np.where(labelled, vocabulary - 1, batch.texts.ids[:, None]).astype(np.int32), labelled),
        caption_words=batch.texts.ids,
    )
    written = Synthetic(sentences, sentences != batch.texts.ids[:, None], np.ones(sentences.shape[:2], bool))
    kept = jax.tree.map(lambda x: x[:, : counts.hardest], written)
    index = rng.integers(0, 1 + counts.candidates, (positives, counts.hardest))
    return Given(batch, written, kept, dict.fromkeys(DIRECTIONS, (index, kept.there)))


def make_parts(model: Matcher, counts: Counts, samples: int) -> dict[str, Callable]:
    """Makes each of `PARTS` a function of parameters, what is `Given` and a key, with the terms of the paper."""
    config = tags_dc_f30k.get_config().to_dict()
    terms = make_terms(config['terms'], rankings=(*DIRECTIONS, GENERATED))
    synthesis = Synthesis(**config['synthesis'] | {'num_samples': samples, 'num_hard': counts.hardest})
    source = Shortlist(num_extra=0, num_hard=counts.hardest)

    def write(params, given, key):
        keys = jax.random.split(key, len(given.batch.image_index))
        return synthesis.write(model, {'params': params}, given.batch, keys)

    def score_sentences(params, given, key):
        return synthesis.keep_hardest(model, {'params': params}, given.batch, given.written)

    def score_candidates(params, given, key):
        return model.apply({'params': params}, given.batch, None, method=source.choose)

    def train(names: Sequence[str], score: Callable) -> Callable:
        """The gradient of terms of the rankings and token losses that `score(matcher, given, images, terms)` gives."""
        wanted = {name: terms[name] for name in names}
        of_tokens = {name: term for name, term in wanted.items() if term.predictions}

        def gradient(params, given, key):
            def loss(params):
                def scored(matcher):
                    images = matcher.encode_image(given.batch.images, train=True)
                    return score(matcher, given, images, of_tokens)

                rankings, losses = model.apply({'params': params}, method=scored, rngs={'dropout': key})
                return objective(wanted, rankings, 0, losses)[0]

            return jax.grad(loss)(params)

        return gradient

    def of_masked_words(matcher, given, images, terms):
        return {}, masked_losses(matcher, images, given.batch, terms)

    def of_sentences(matcher, given, images, terms):
        scores, losses = score_synthetic(matcher, images, given.batch, given.kept, terms)
        return {GENERATED: scores.ranking()}, losses

    def of_candidates(matcher, given, images, terms):
        texts = matcher.encode_text(given.batch.texts, train=True)
        scores = source.score(matcher, images, texts, given.batch, given.chosen, None)
        return source.rank(scores, given.batch.image_index), {}

    functions = (
        write,
        score_sentences,
        score_candidates,
        train(['masked'], of_masked_words),
        train(['synthetic', 'discrimination', 'correction'], of_sentences),
        train(['ranking'], of_candidates),
    )
    return dict(zip(PARTS, functions, strict=True))


def flops_per_pair(size: BERTSize, words: int, regions: int, vocabulary: int, heads: Sequence[str]) -> float:
    """Operations of the products that reading a pair takes, in the blocks and in the heads."""
    tokens, hidden = words + regions, size.hidden
    block = 2 * tokens * (4 * hidden**2 + 2 * hidden * size.mlp_dim) + 2 * 2 * tokens**2 * hidden
    word_head = 2 * words * hidden * (hidden + vocabulary)
    of_head = {'rank': 2 * hidden * (hidden + 1), 'discriminate': 2 * words * hidden * 2}
    return size.layers * block + sum(of_head.get(head, word_head) for head in heads)


def xla_flops_per_pair(
    model: Matcher, params: chex.ArrayTree, words: int, regions: int, heads: Sequence[str], trained: bool
) -> float:
    """What XLA counts when one pair is read, or for the gradient by parameters and embeddings."""

    def read(params, *vectors):
        sides = [Elements(x, jnp.ones(x.shape[:2], bool)) for x in vectors]
        said = model.apply({'params': params}, *sides, heads, method='read_pairs')
        return sum(jnp.sum(x**2) for x in said.values())

    hidden = SIZES[model.size].hidden
    sides = [jax.ShapeDtypeStruct((1, count, hidden), jnp.dtype(model.dtype)) for count in (regions, words)]
    function = jax.grad(read, (0, 1, 2)) if trained else read
    return jax.jit(function).lower(params, *sides).cost_analysis()['flops']


def measure(parts: dict[str, Callable], params: chex.ArrayTree, given: Given, rounds: int) -> dict[str, float]:
    """Runs all parts in turn, in rounds; of each the median time."""
    key = jax.random.key(1)
    given = jax.device_put(given)
    compiled = {name: jax.jit(part).lower(params, given, key).compile() for name, part in parts.items()}
    times = [{name: seconds(part, params, given, key)[0] for name, part in compiled.items()} for _ in range(rounds + 1)]
    return {name: statistics.median(took[name] for took in times[1:]) for name in parts}  # the first one warms up


def main(argv: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', choices=SIZES, default='base')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--positives', type=int, default=1)
    parser.add_argument('--variants', type=int, default=20, help='K, masked ones of a sentence')
    parser.add_argument('--samples', type=int, default=20, help='L, sentences written from each of them')
    parser.add_argument('--hardest', type=int, default=31, help='m, sentences and candidates that are kept')
    parser.add_argument('--candidates', type=int, default=399, help='in each direction')
    parser.add_argument('--words', type=int, default=16, help='word pieces of the longest text')
    parser.add_argument('--regions', type=int, default=36)
    parser.add_argument('--vocabulary', type=int, default=CASED_WORD_PIECES)
    parser.add_argument('--pairs', type=int, help='how many of each part are timed at most (8 on a CPU, else all)')
    parser.add_argument('--rounds', type=int, default=3)
    args = parser.parse_args(argv)
    counts = Counts(args.variants, args.variants * args.samples, args.hardest, args.candidates)
    if counts.hardest > min(counts.sentences, counts.candidates):
        parser.error('--hardest is more than there are sentences or candidates')
    if counts.candidates < args.positives:
        parser.error('--candidates is less than --positives, which are candidates of each other')
    most = args.pairs or (PAIRS_ON_CPU if jax.default_backend() == 'cpu' else max(counts.pairs().values()))
    if most < 2:
        parser.error('--pairs is less than 2, but a positive and a negative are scored together')
    timed = counts.at_most(most, args.positives)

    config = tags_dc_f30k.get_config().model.to_dict() | {'size': args.size, 'dtype': args.dtype}
    model = config_lib.make_model(config, args.vocabulary)
    given = make_up(timed, args.positives, args.words, args.regions, args.vocabulary)
    first = jax.tree.map(lambda x: x[:1], (given.batch.images, given.batch.texts))
    params = jax.jit(model.init)(jax.random.key(0), *first)['params']
    print(
        f'TAGS-DC {args.size}, {args.dtype}, {args.positives} positives, K = {args.variants}, L = {args.samples}, '
        f'm = {args.hardest}, {args.candidates} candidates, {args.words} words, {args.regions} regions, '
        f'{args.vocabulary} word pieces: {jax.devices()}'
    )
    print(f'2048 x 2048 products in float32: {matmul_gflops():.0f} GFLOP/s')
    if timed != counts:
        print(f'of each part at most {most} pairs of a positive (in each direction) are timed, and scaled to all')

    took = measure(make_parts(model, timed, args.samples), params, given, args.rounds)
    pairs, timed_pairs = counts.pairs(), timed.pairs()
    took = {part: took[part] / args.positives * pairs[part] / timed_pairs[part] for part in PARTS}
    whole, operations = sum(took.values()), 0.0
    print('a positive:              pairs  timed  GFLOP/pair  XLA/ours   TFLOP        s   share  GFLOP/s')
    for part, (heads, trained) in PARTS.items():
        flops = (3 if trained else 1) * flops_per_pair(
            SIZES[args.size], args.words, args.regions, args.vocabulary, heads
        )
        ratio = xla_flops_per_pair(model, params, args.words, args.regions, heads, trained) / flops
        operations += flops * pairs[part]
        print(
            f'{part:22} {pairs[part]:7} {timed_pairs[part]:6} {flops / 1e9:11.3g} {ratio:9.3f}'
            f' {flops * pairs[part] / 1e12:7.3g} {took[part]:8.3g} {took[part] / whole:7.1%}'
            f' {flops * pairs[part] / took[part] / 1e9:8.3g}',
            flush=True,
        )
    print(
        f'{"all":22} {sum(pairs.values()):7} {sum(timed_pairs.values()):6} {"":21} {operations / 1e12:7.3g}'
        f' {whole:8.3g} {1:7.1%} {operations / whole / 1e9:8.3g}'
    )
    if args.positives < RELEASED_POSITIVES:
        print(
            f'a step of {RELEASED_POSITIVES} positives at this speed: '
            f'{RELEASED_POSITIVES * operations:.2g} FLOP, {RELEASED_POSITIVES * whole:.3g} s'
        )


if __name__ == '__main__':
    main()
