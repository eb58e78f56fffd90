"""A source of the pairs of a training step: it samples, chooses, scores and remembers them.

A way to make pairs is a file of `jitm.training.sources` with a function that returns a `Source`. The functions of a
source are pure; its memory between steps is a part of the training state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array, ArrayTree, PRNGKey

from jitm.config.section import Bound, Section
from jitm.data.pipeline import Pipeline, Sampler
from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import LEARNED, Metrics, Rankings, Terms
from jitm.types import Batch, Pairs

Models = Mapping[str, tuple[Matcher, ArrayTree]]  # name of a member -> its matcher and variables
Losses = dict[str, Array]  # name of a token term -> its unreduced loss of every pair, [B]
Scored = tuple[Rankings, Losses]
Memory = Mapping[str, ArrayTree]  # memory of the sources between steps, by a name of each


class View(NamedTuple):
    """The inputs of a step that a source may read before the gradient.

    Attributes:
      models: The matcher and the variables of every member.
      batch: The part of the batch on this device.
      memory: The memory of the sources, from earlier steps.
      epoch: int [].
    """

    models: Models
    batch: Batch
    memory: Memory
    epoch: Array


class Context(NamedTuple):
    """The parts of a plan that a source may depend on.

    Attributes:
      terms: The objective.
      batch_size: The number of pairs in a batch.
      parts: The sections of the config, bound, by their keys.
      pending: Whether the first stage has not written its files yet; zeros of the same shape replace them.
    """

    terms: Terms
    batch_size: int
    parts: Mapping[str, Bound | None] = MappingProxyType({})
    pending: bool = False


# Patterns of config keys that not every source supports -> the reason, for the message of those that do not.
OPTIONS = {
    'augmentation.num_views': 'it has one view of each pair',
    'augmentation.change_words': 'its captions are not changed',
    'augmentation.drop_regions': 'its images are not changed',
    'offline.path': 'it scores no mined negatives',
    'relevance.source': "its candidates differ from 'in_batch'",
    'labels.source': "its candidates differ from 'in_batch'",
    'members.*.learn_from': 'models would learn from scores of other candidates',
    'data.token_vectors': 'its captions have no vectors of tokens',
}
AUGMENTATION = {'augmentation.num_views', 'augmentation.change_words', 'augmentation.drop_regions'}
# What sources support whose candidates are not the pairs of the batch.
OF_OTHER_ROWS = {'augmentation.change_words', 'augmentation.drop_regions', 'data.token_vectors'}


class Conditions(NamedTuple):
    """Conditions for combining a source with others, see `jitm.training.plan.check_conditions`.

    Attributes:
      accepts: The keys of `OPTIONS` that may be set with it, by default all.
      needs: Config keys that must be set with it -> how to set them.
      uses: Other config keys that it reads.
      members: Config keys that name a member.
      gives: The inputs, rankings and predictions that it supplies to terms -> how a user supplies them, for a message;
        empty for a source of the pairs that every term ranks.
      reader: The terms that read them, for a message.
      row_by_row: Whether it computes the losses of a query without the scores of other queries.
    """

    accepts: Collection[str] = OPTIONS
    needs: Mapping[str, str] = {}
    uses: Collection[str] = ()
    members: Collection[str] = ()
    gives: Mapping[str, str] = {}
    reader: str = ''
    row_by_row: bool = False


class Revision(NamedTuple):
    """A change of the memory before an epoch, from an evaluation of its pairs.

    Attributes:
      start_epoch: The first epoch before which the memory is revised.
      measure: `(models, trained, batch) -> {model: array [B]}`, for the pairs of the global batch in evaluation mode.
      revise: `(memory, rows, measured) -> memory`, in numpy: `rows` int [N] of the epoch's pairs in the training split,
        and the results of `measure` for them, [N] for each model.
    """

    start_epoch: int
    measure: Callable[[Models, Collection[str], Batch], dict[str, Array]]
    revise: Callable[[Memory, Any, Mapping[str, Any]], Memory]


class Source(NamedTuple):
    """A source of rankings, of losses of token terms, or of both. Only `score` has a gradient.

    Attributes:
      score: `(matcher, images, texts, batch, seen, train) -> (rankings, losses)` of the global batch, the same on every
        device (`collectives.gather_results`), given the encoded images and texts of this device. The rankings of
        candidates are `i2t` and `t2i`. In evaluation mode `train` is False and `seen` is None: it scores models that
        labels or other models learn from, on the scale of training (`in_batch.on_training_scale`), or returns
        `({}, {})`.
      look: `(view, keys) -> {model: seen}`, the decisions for each trained model before scoring, such as the candidates
        it ranks, for this device or the global batch as `score` needs them. `keys` are the random keys of the models by
        name, which dropout uses too: fold a number into them.
      init: `(models, trained, batch, num_pairs) -> memory` of this source before the first step, for the names of the
        trained models and the number of training pairs. The batch is one pair without `drawn` and the parameters are
        random: use dtypes and the shape of a row, never values.
      remember: `(memory, seen, rankings) -> memory` of all sources after a step, `{**memory, NAME: ...}`, which must be
        the same on every device; `seen` and `rankings` of each model.
      samplers: `(pipeline) -> {name: sampler}`, which sample `Batch.drawn` on the host.
      revision: A change of the memory before an epoch; None for none.
      conditions: The conditions for combining it with other sources.
      name: The key of what it has seen where it is combined with other sources, see `together`.
      metrics: `(rankings, terms) -> {metric: scalar}` of a trained model, for the log.
    """

    score: Callable[..., Scored]
    look: Callable[[View, Mapping[str, PRNGKey]], dict[str, Any]] = lambda view, keys: dict.fromkeys(keys)
    init: Callable[..., Memory] = lambda models, trained, batch, num_pairs: {}
    remember: Callable[..., Memory] = lambda memory, seen, rankings: memory
    samplers: Callable[[Pipeline], dict[str, Sampler]] = lambda pipeline: {}
    revision: Revision | None = None
    conditions: Conditions = Conditions()
    name: str = 'candidates'
    metrics: Callable[[Rankings, Terms], Metrics] = lambda rankings, terms: {}


DECLARED = Section(
    'source',
    'jitm.training.sources',
    own=callable,
    takes=('context',),
    returns=(Source, 'a jitm.training.source.Source'),
)


def each(look: Callable[[View, str, PRNGKey], Any]) -> Callable[..., dict[str, Any]]:
    """Returns the `look` of a source from a function for one model, `(view, name, key) -> seen`."""
    return lambda view, keys: {name: look(view, name, key) for name, key in keys.items()}


def together(*sources: Source) -> Source:
    """Combines sources in their order; at most one of them revises the memory.

    The `seen` of a model is a dict by the names of the sources. The conditions are not combined.

    Raises:
      ValueError: If several sources revise the memory.
    """

    if len(sources) == 1:
        return sources[0]

    def look(view, keys):
        seen = {name: {} for name in keys}
        for source in sources:
            for name, part in source.look(view, keys).items():
                seen[name][source.name] = part
        return seen

    def score(matcher, images, texts, batch, seen, train):
        rankings = {}
        losses = {}
        for source in sources:
            ranked, of_terms = source.score(matcher, images, texts, batch, seen and seen[source.name], train)
            rankings |= ranked
            losses |= of_terms
        return rankings, losses

    def init(models, trained, batch, num_pairs):
        return merge(source.init(models, trained, batch, num_pairs) for source in sources)

    def remember(memory, seen, rankings):
        for source in sources:
            memory = source.remember(memory, {name: parts[source.name] for name, parts in seen.items()}, rankings)
        return memory

    def samplers(pipeline):
        return merge(source.samplers(pipeline) for source in sources)

    def metrics(rankings, terms):
        return merge(source.metrics(rankings, terms) for source in sources)

    revisions = [source.revision for source in sources if source.revision]
    if len(revisions) > 1:
        raise ValueError('more than one source revises the memory')
    name = '+'.join(source.name for source in sources)
    revision = revisions[0] if revisions else None
    return Source(score, look, init, remember, samplers, revision, name=name, metrics=metrics)


def merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges dicts into one; of equal keys the last one wins."""
    merged = {}
    for part in parts:
        merged |= part
    return merged


def learned_inputs(matcher: Matcher) -> dict[str, Array]:
    """Returns the inputs of losses that a model learns, see `LEARNED`."""
    learned = {name: getattr(matcher, name) for name in LEARNED}
    return {name: value for name, value in learned.items() if value is not None}


def score_in_evaluation(source: Source, model: Matcher, variables: ArrayTree, batch: Batch) -> Rankings:
    """Scores the global batch in evaluation mode, for other models to learn from."""

    def score(matcher):
        return source.score(matcher, *encode_pairs(matcher, batch), batch, None, False)[0]

    return model.apply(variables, method=score)


def encode_pairs(matcher: Matcher, pairs: Pairs | Batch, train: bool = False) -> tuple[Encoding, Encoding]:
    """Encodes the images and the texts of some pairs."""
    return matcher.encode_image(pairs.images, train), matcher.encode_text(pairs.texts, train)


def concatenate(*rows: ArrayTree) -> ArrayTree:
    """Concatenates the rows of encodings, or of other trees of arrays."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)


def pick_rows(step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Picks the texts of the batch themselves, for a `Sampler` that draws no captions."""
    del step
    return rows, np.zeros(0, int)
