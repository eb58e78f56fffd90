"""A source of the pairs of a training step: it samples, chooses, scores and remembers them.

A way to make pairs is a file of `jitm.training.sources` with a function that returns a `Source`. The functions of a
source are pure; its memory between steps is a part of the training state.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import chex

from jitm.data.pipeline import Pipeline, Sampler
from jitm.models.matcher import Matcher
from jitm.training.objective import Term
from jitm.types import Batch, Ranking

Models = Mapping[str, tuple[Matcher, chex.ArrayTree]]  # name of a jointly trained model -> matcher and variables
Rankings = dict[str, Ranking]
Losses = dict[str, chex.Array]  # name of a term -> its unreduced loss of every pair, [B]
Scored = tuple[Rankings, Losses]
Memory = Mapping[str, chex.ArrayTree]  # memory of the sources between steps, by a name of each


class View(NamedTuple):
    """A step before its gradient.

    Attributes:
      models: All models that train together.
      batch: The part of the batch on this device.
      memory: The memory of the sources, from earlier steps.
      epoch: int [].
    """

    models: Models
    batch: Batch
    memory: Memory
    epoch: chex.Array


class Context(NamedTuple):
    """The parts of a plan that a source may depend on.

    Attributes:
      terms: The objective.
      batch_size: The number of pairs in a batch.
      pending: Whether files that an earlier stage writes do not exist yet; zeros of the same shape replace them.
    """

    terms: Mapping[str, Term]
    batch_size: int
    pending: bool = False


class Conditions(NamedTuple):
    """Conditions for combining a source with others, see `jitm.training.plan.check_conditions`.

    Attributes:
      excludes: Patterns of config keys that must not be set with it -> the reason.
      needs: Config keys that must be set with it -> how to set them.
      uses: Other config keys that it reads.
      members: Config keys that name a member.
      gives: The inputs, rankings and predictions that it supplies to terms; empty for a source of the pairs that every
        term ranks.
      reader: The terms that read them, for a message.
    """

    excludes: Mapping[str, str] = {}
    needs: Mapping[str, str] = {}
    uses: Collection[str] = ()
    members: Collection[str] = ()
    gives: Collection[str] = ()
    reader: str = ''


class Revision(NamedTuple):
    """A change of the memory before an epoch, from an evaluation of its pairs.

    Attributes:
      start_epoch: The first epoch that it precedes.
      measure: `(models, trained, batch) -> {model: array [B]}`, for the pairs of the global batch in evaluation mode.
      revise: `(memory, rows, measured) -> memory`, in numpy: `rows` int [N] of the epoch's pairs in the training split,
        and the results of `measure` for them, [N] for each model.
    """

    start_epoch: int
    measure: Callable[[Models, Collection[str], Batch], dict[str, chex.Array]]
    revise: Callable[[Memory, Any, Mapping[str, Any]], Memory]


class Source(NamedTuple):
    """A source of rankings, of losses of terms, or of both. Only `score` has a gradient.

    Attributes:
      score: `(matcher, images, texts, batch, seen, train) -> (rankings, losses)` of the global batch, given the encoded
        images and texts of this device. A model that others learn from is scored with `train=False` and `seen=None`; a
        source that has nothing for it returns nothing.
      look: `(view, keys) -> {model: seen}`, the decisions for each trained model before scoring, such as the candidates
        it ranks; `keys` are the random keys of the models by name.
      init: `(models, trained, batch, pairs) -> memory` before the first step, for the names of the trained models and
        the number of training pairs; only the shapes of the batch matter.
      remember: `(memory, seen, rankings) -> memory` after a step; `seen` and `rankings` of each model.
      samplers: `(pipeline) -> {name: sampler}`, which sample `Batch.drawn` on the host.
      revision: A change of the memory before an epoch; None for none.
      conditions: The conditions for combining it with other sources.
    """

    score: Callable[..., Scored]
    look: Callable[[View, Mapping[str, chex.PRNGKey]], dict[str, Any]] = lambda view, keys: dict.fromkeys(keys)
    init: Callable[..., Memory] = lambda models, trained, batch, pairs: {}
    remember: Callable[..., Memory] = lambda memory, seen, rankings: memory
    samplers: Callable[[Pipeline], dict[str, Sampler]] = lambda pipeline: {}
    revision: Revision | None = None
    conditions: Conditions = Conditions()


def each(look: Callable[[View, str, chex.PRNGKey], Any]) -> Callable[..., dict[str, Any]]:
    """Returns the `look` of a source from a function for one model, `(view, name, key) -> seen`."""
    return lambda view, keys: {name: look(view, name, key) for name, key in keys.items()}


def together(*sources: Source) -> Source:
    """Returns the source of all rankings, losses, memories and draws of some sources, in their order."""

    def look(view: View, keys: Mapping[str, chex.PRNGKey]) -> dict[str, list]:
        parts = [source.look(view, keys) for source in sources]
        return {name: [part[name] for part in parts] for name in keys}

    def score(matcher: Matcher, images, texts, batch: Batch, seen: list | None, train: bool) -> Scored:
        rankings, losses = {}, {}
        for number, source in enumerate(sources):
            ranked, of_terms = source.score(matcher, images, texts, batch, seen and seen[number], train)
            rankings |= ranked
            losses |= of_terms
        return rankings, losses

    def init(models: Models, trained: Collection[str], batch: Batch, pairs: int) -> Memory:
        return {key: kept for source in sources for key, kept in source.init(models, trained, batch, pairs).items()}

    def remember(memory: Memory, seen: Mapping[str, list], rankings: Mapping[str, Rankings]) -> Memory:
        for number, source in enumerate(sources):
            memory = source.remember(memory, {name: parts[number] for name, parts in seen.items()}, rankings)
        return memory

    def samplers(pipeline: Pipeline) -> dict[str, Sampler]:
        return {name: sampler for source in sources for name, sampler in source.samplers(pipeline).items()}

    revision = next((source.revision for source in sources if source.revision), None)
    return Source(score, look, init, remember, samplers, revision)


def score_as_anchor(source: Source, model: Matcher, variables: chex.ArrayTree, batch: Batch) -> Rankings:
    """Scores the global batch in evaluation mode, for other models to learn from."""

    def score(matcher: Matcher) -> Rankings:
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        return source.score(matcher, images, texts, batch, None, False)[0]

    return model.apply(variables, method=score)
