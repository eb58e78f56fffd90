"""Text encoders that write vectors of tokens, and the restoration of the one that encoded a run's captions."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm.data.text.token_vectors import ENTRY
from jitm.data.text.word_level import Tokens
from jitm.encoders.networks import check_restored
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.inference.engine import Engine
from jitm.models.matcher import Matcher
from jitm.runs.run import Run, load_run
from jitm.types import Precision, Texts


class TextNetwork:
    """The text encoder of a CLIP or SigLIP with its parameters.

    Attributes:
      run: The run whose text encoder it is.
      dtype: The dtype of the vectors, 'float32' or 'float16'.
      precision: The precision of the products that compute them.
      origin: Where the parameters are from, as JSON.
    """

    def __init__(self, run: Run, dtype: str, precision: Precision):
        """Moves the parameters to the devices; raises a UserError if the run has no such text encoder."""
        if not hasattr(getattr(run.model, 'text', None), 'features'):
            raise UserError(
                f'{run.workdir} has no text encoder whose vectors of tokens can be written '
                f'({type(run.model).__name__} as configured): use a CLIP or SigLIP, or leave --texts out'
            )
        self.run, self.dtype, self.precision = run, dtype, precision
        self.origin = {'workdir': str(run.workdir.absolute()), 'step': run.step, 'member': run.member}
        self._engine = Engine(run.model, run.variables, 'float32', precision)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All inputs of the vectors besides the captions, as JSON."""
        parameters = jax.tree.leaves(self.run.variables['params']['text'])
        return {
            'network': repr(self.run.model.text),
            'parameters': hash_arrays(jax.device_get(parameters)),
            'vocabulary': self.run.vocabulary.hash,
            'dtype': self.dtype,
            'precision': self.precision,
            'size': self.run.model.text.hidden_dim,
        }

    def encode(self, tokens: Tokens, index: np.ndarray) -> np.ndarray:
        """Encodes the tokens of some texts, each as if it were alone.

        Args:
          tokens: The texts.
          index: Rows of the texts, int [N].

        Returns:
          The vectors of the tokens of each in turn, [sum of lengths, F] of `dtype`.
        """
        lengths = tokens.lengths[index]
        starts = np.cumsum(lengths) - lengths
        vectors = np.empty((lengths.sum(), self.identity['size']), self.dtype)
        for positions, states in self._engine.calls(_token_states, tokens, index):
            for position, padded in zip(positions, states, strict=True):
                with np.errstate(over='ignore'):
                    vectors[starts[position] :][: lengths[position]] = padded[: lengths[position]]
        return vectors

    def add_vectors(self, tokens: Tokens) -> Tokens:
        """Returns texts with the vectors of their tokens."""
        return dataclasses.replace(tokens, vectors=self.encode(tokens, np.arange(len(tokens.lengths))))


def _token_states(model: Matcher, texts: Texts) -> chex.Array:
    return model.text.features(texts)


def of_run(run: Run, moved: str | Path | None = None) -> TextNetwork | None:
    """Returns the text encoder of a head on tokens, see `restore`; None for other runs, which have none to move."""
    if run.model.text_format.vectors:
        return restore(run.encoded_by, run.workdir, moved)
    if moved:
        raise UserError(f'--encoder is read with a head on tokens only, which {run.workdir} is not: leave it out')
    return None


def restore(encoded_by: Mapping[str, Any], workdir: Path, moved: str | Path | None = None) -> TextNetwork:
    """Returns the text encoder whose vectors a run was trained on.

    Args:
      encoded_by: See `Run.encoded_by`.
      workdir: The run directory.
      moved: The run directory of the text encoder, if it is not where it was.

    Raises:
      UserError: If it cannot be read, or is another encoder.
    """

    def read() -> tuple[TextNetwork, Mapping[str, Any]]:
        recorded = encoded_by[ENTRY]
        origin = recorded['origin']
        run = load_run(moved or origin['workdir'], origin['step'], origin['member'])
        return TextNetwork(run, recorded['dtype'], recorded['precision']), recorded

    return check_restored(
        read,
        f'{workdir} was trained on vectors of a text encoder',
        'name its run directory with --encoder (jitm.load: encoder)',
        'vectors',
    )
