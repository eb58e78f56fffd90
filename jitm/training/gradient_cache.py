"""Encoders that keep the activations of a few images or texts at a time (GradCache: Gao et al., 2021)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import ModifyScopeVariableError

from jitm.devices.recompute import keep_within
from jitm.errors import UserError
from jitm.models import tiling
from jitm.models.matcher import Matcher

METHODS = 'encode_image', 'encode_text'


def encode_in_chunks(step: Callable, rows: int | None) -> Callable:
    """Returns a step in which every matcher encodes its images and its texts in chunks.

    The step has the encodings of all rows, and its loss, scores and gradient are those of the whole batch (Gao et al.,
    2021, section 3.2). What an encoder keeps for its gradient is kept for one chunk: each chunk is encoded a second
    time, with the same dropout, when the gradient reaches its encodings.

    Args:
      step: The function, in whose trace matchers are applied.
      rows: The maximum number of images or texts of a chunk on a device; None to encode all at once.

    Raises:
      UserError: By the step while it is traced, if an encoder has batch normalization in training, whose statistics
        would be those of a chunk.
    """

    def intercept(method, args, kwargs, context):
        if not isinstance(context.module, Matcher) or context.method_name not in METHODS:
            return method(*args, **kwargs)
        items, *options = args
        count = len(jax.tree.leaves(items)[0])
        if count <= rows:
            return method(*args, **kwargs)
        # `tiling.map_tiles` must not close over a bound module, see `as_function`.
        model, variables = context.module.unbind()
        key = context.module.make_rng('dropout') if context.module.has_rng('dropout') else None

        def encode(chunk):
            index, items = chunk
            rngs = {} if key is None else {'dropout': jax.random.fold_in(key, index[0])}
            return model.apply(variables, items, *options, method=context.method_name, rngs=rngs, **kwargs)

        try:
            return keep_within(0, tiling.map_tiles)(encode, (jnp.arange(count), items), rows)
        except ModifyScopeVariableError:
            raise UserError(
                f"config key 'encode_chunk' is {rows}, but {type(model).__name__}.{context.method_name} trains batch "
                'normalization, which needs the statistics of the whole batch: set it to None'
            ) from None

    return step if rows is None else nn.intercept_methods(intercept)(step)
