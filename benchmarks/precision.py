"""Measures the effect of a TPU's rounded products on the rankings of trained runs, mined negatives, and training.

    python -m benchmarks precision runs/vsepp runs/scan          # evaluates both on dev at each precision
    python -m benchmarks precision runs/vsepp --train default    # trains the run again, in runs/vsepp_default

The products are emulated on a CPU. As on a TPU, 'default' rounds the operands of a float32 product to bfloat16, and
'high' sums three products of the parts of operands that are split into two of bfloat16; sums are float32. A change is
relative to evaluation at 'highest', in percent of the queries of both directions.
"""

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import conv_general_dilated_p, dot_general_p
from jax.interpreters import mlir

from benchmarks.results import Row
from jitm import metrics
from jitm.data.splits import Split, pad_texts, take_images
from jitm.data.text.word_level import Tokens
from jitm.inference.engine import SCORED_PER_CALL, Engine, batches
from jitm.models.matcher import Encoding
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import Run, load_run, read_split, read_tokens
from jitm.training.loop import train_and_evaluate
from jitm.types import PRECISIONS

LOWERED = ('default', 'high')
VARIANTS = (  # the precision of encoders and of similarities, and the dtype of encodings
    ('highest', 'highest', 'float32'),
    *((dtype, 'highest', 'float32') for dtype in LOWERED),
    *(('highest', dtype, 'float32') for dtype in LOWERED),
    *((dtype, dtype, 'float32') for dtype in LOWERED),
    ('highest', 'highest', 'bfloat16'),
)
TOP, MINED = 10, 60  # candidates of a list, and mined negatives of a query


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    """Rounds the products of float32 arrays that are compiled for a CPU within the block as a TPU does."""
    primitives = dot_general_p, conv_general_dilated_p
    exact = [mlir._platform_specific_lowerings['cpu'][primitive].rule for primitive in primitives]  # no public getter
    for primitive, rule in zip(primitives, exact, strict=True):
        mlir.register_lowering(primitive, functools.partial(_lower, primitive, rule), platform='cpu')
    jax.clear_caches()
    try:
        yield
    finally:
        for primitive, rule in zip(primitives, exact, strict=True):
            mlir.register_lowering(primitive, rule, platform='cpu')
        jax.clear_caches()


def _lower(
    primitive: Primitive, exact: Callable, ctx: mlir.LoweringRuleContext, *operands: Any, precision: Any, **params: Any
) -> Any:
    """Lowers a product: exactly, or as a sum of exact products of rounded operands."""
    chosen = precision[0] if precision else lax.Precision.DEFAULT
    if chosen == lax.Precision.HIGHEST or any(aval.dtype != np.float32 for aval in ctx.avals_in):
        return exact(ctx, *operands, precision=precision, **params)

    def rounded(x: jax.Array, y: jax.Array) -> jax.Array:
        def product(x: jax.Array, y: jax.Array) -> jax.Array:
            return primitive.bind(x, y, precision=(lax.Precision.HIGHEST,) * 2, **params)

        (x, x_rest), (y, y_rest) = _split(x), _split(y)
        exact = product(x, y)
        return exact if chosen == lax.Precision.DEFAULT else product(x, y_rest) + product(x_rest, y) + exact

    return mlir.lower_fun(rounded, multiple_results=False)(ctx, *operands)


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns an array rounded to bfloat16, and the rest rounded too."""
    rounded = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
    return rounded, lax.reduce_precision(x - rounded, exponent_bits=8, mantissa_bits=7)


class Encoded:
    """The encodings of a split at one precision."""

    def __init__(self, engine: Engine, split: Split, tokens: Tokens):
        """Encodes the images, and the texts in calls of similar lengths."""
        reads = engine.model.reads
        images = take_images(split, np.arange(split.num_images), reads, tokens.tags)
        self.images = engine.encode_any('encode_image', images)
        self.texts: list[tuple[np.ndarray, Encoding]] = []
        for rows in batches(np.argsort(tokens.lengths, kind='stable'), SCORED_PER_CALL):
            texts = pad_texts(tokens, rows, engine.padded_length(tokens.lengths[rows]))
            self.texts.append((rows, engine.encode_any('encode_text', texts)))

    def score(self, engine: Engine) -> np.ndarray:
        """Scores all pairs: float32 [I, T]."""
        blocks = [engine.similarity(self.images, texts) for _, texts in self.texts]
        order = np.concatenate([rows for rows, _ in self.texts])
        return np.concatenate(blocks, axis=1)[:, np.argsort(order)]


def orders(sims: np.ndarray, positives: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the candidates of each query in the order of their scores, and which match, for both directions."""
    for scores, matches in ((sims, positives), (sims.T, positives.T)):
        order = np.argsort(-scores, axis=1, kind='stable')
        yield order, np.take_along_axis(matches, order, axis=1)


def rankings(sims: np.ndarray, split: Split) -> dict[str, list[np.ndarray]]:
    """Returns the compared arrays, one for each direction with a row for each query."""
    compared = {'top-1': [], f'top-{TOP}': [], 'rank of the first match': [], f'{MINED} hardest negatives': []}
    positives = split.image_of_text == np.arange(split.num_images)[:, None]
    for order, matches in orders(sims, positives):
        negatives = order[~matches]
        starts = np.cumsum([0, *(~matches).sum(axis=1)[:-1]])
        hardest = [np.sort(negatives[start : start + MINED]) for start in starts]
        values = order[:, :1], order[:, :TOP], matches.argmax(axis=1)[:, None], np.stack(hardest)
        for ranking, value in zip(compared.values(), values, strict=True):
            ranking.append(value)
    return compared


def changed(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Returns the percentage of queries whose row differs."""
    return 100 * float(np.concatenate([(a != b).any(axis=1) for a, b in zip(first, second, strict=True)]).mean())


def evaluate(run: Run, split_name: str) -> Iterator[Row]:
    """Yields a row for each variant."""
    split = read_split([run], split_name)
    tokens, encoded, engines, exact = read_tokens(run, split), {}, {}, None
    for encoders, similarities, dtype in VARIANTS:
        for precision in (encoders, similarities):
            if (precision, dtype) not in engines:
                engines[precision, dtype] = Engine(run.model, run.variables, dtype, precision)
        if (encoders, dtype) not in encoded:
            encoded[encoders, dtype] = Encoded(engines[encoders, dtype], split, tokens)
        sims = encoded[encoders, dtype].score(engines[similarities, dtype])
        ranked = rankings(sims, split)
        exact = exact or ranked
        yield {
            'run': run.workdir.name,
            'encoders': encoders,
            'similarities': similarities,
            'dtype': dtype,
            'rsum': f'{metrics.retrieval_metrics(sims, split.image_of_text)["rsum"]:.2f}',
            **{f'{name}, % changed': changed(exact[name], ranked[name]) for name in ranked},
        }


def train(run: Run, precision: str) -> Row:
    """Trains a run again at a precision; the best rsum of both."""
    workdir = run.workdir.with_name(f'{run.workdir.name}_{precision}')
    again = train_and_evaluate({**run.config, 'precision': precision}, workdir)
    with Checkpoints(run.workdir) as checkpoints:
        rsum = checkpoints.metrics(run.step)['rsum']
    return {
        'run': run.workdir.name,
        'seed': run.config['seed'],
        'precision': precision,
        'rsum': f'{again["best"]["rsum"]:.1f}',
        'rsum of the run': f'{rsum:.1f}',
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('runs', type=Path, nargs='+', metavar='RUN', help='a run directory')
    parser.add_argument('--split', default='dev')
    parser.add_argument('--train', choices=PRECISIONS, help='train each run again at this precision instead')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Evaluates each run, or trains it again."""
    with emulated():
        for workdir in args.runs:
            trained = load_run(workdir)
            yield from [train(trained, args.train)] if args.train else evaluate(trained, args.split)
