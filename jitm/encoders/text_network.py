"""Text encoders that write vectors of tokens, and the restoration of the one that encoded a run's captions."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
from flax import linen as nn

from jitm.data.text.token_vectors import ENTRY
from jitm.data.text.vocabularies import Tokenizer
from jitm.data.text.word_level import Tokens
from jitm.encoders.networks import check_restored, origin_of
from jitm.errors import UserError
from jitm.files import describe, expand, hash_arrays
from jitm.files.packages import located
from jitm.importers.text_folders import load_text_encoder
from jitm.inference.engine import Engine
from jitm.runs.checkpoint_files import FOLDER
from jitm.runs.run import Run, load_run
from jitm.types import Precision, Texts


@dataclasses.dataclass(frozen=True, repr=False)
class TextNetwork:
    """A text encoder with its parameters.

    Attributes:
      encoder: A module whose `features` are the last states of tokens.
      params: Its parameters.
      vocabulary: The vocabulary of its tokens.
      dtype: The dtype of the vectors, 'float32' or 'float16'.
      precision: The precision of the products that compute them.
      origin: Where the parameters are from, as JSON: `workdir`, `step` and `member` of a run, or a `folder`.
    """

    encoder: nn.Module
    params: chex.ArrayTree
    vocabulary: Tokenizer
    dtype: str
    precision: Precision
    origin: Mapping[str, Any]

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All inputs of the vectors besides the captions, as JSON."""
        parameters = jax.tree.leaves(self.params)
        return {
            'network': describe(self.encoder),
            'parameters': hash_arrays(jax.device_get(parameters)),
            'vocabulary': self.vocabulary.hash,
            'dtype': self.dtype,
            'precision': self.precision,
            'size': self.encoder.hidden_dim,
        }

    @functools.cached_property
    def _engine(self) -> Engine:
        return Engine(self.encoder, {'params': self.params}, 'float32', self.precision)

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


def _token_states(encoder: nn.Module, texts: Texts) -> chex.Array:
    return encoder.features(texts)


def of_trained(run: Run, dtype: str, precision: Precision) -> TextNetwork:
    """Returns the text encoder of a run; a UserError if it has none whose states can be written."""
    encoder = getattr(run.model, 'text', None)
    if not hasattr(encoder, 'features'):
        raise UserError(
            f'{run.workdir} has no text encoder whose vectors of tokens can be written '
            f'({type(run.model).__name__} as configured): use a CLIP, SigLIP or text.BERTEncoder, or leave --texts out'
        )
    return TextNetwork(encoder, run.variables['params']['text'], run.vocabulary, dtype, precision, origin_of(run))


def of_folder(path: str | Path, dtype: str, precision: Precision) -> TextNetwork:
    """Returns the text encoder of a folder, or of a name, see `text_folders.load_text_encoder`."""
    path = expand(str(path))
    encoder, params, vocabulary = load_text_encoder(path)
    origin = {'folder': path if located(path) != path else str(Path(path).absolute())}
    return TextNetwork(encoder, params, vocabulary, dtype, precision, origin)


def of_run(run: Run, moved: str | Path | None = None) -> TextNetwork | None:
    """Returns the text encoder that a head on tokens reads, see `restore`; None for other runs."""
    if run.model.text_format.vectors:
        return restore(run.encoded_by, run.workdir, moved)
    if moved:
        raise UserError(f'--encoder is read with a head on tokens only, which {run.workdir} is not: leave it out')
    return None


class Moved(NamedTuple):
    """Where the networks of a run are that encoded its photos and its texts; None for one that has not moved."""

    photos: str | Path | None
    texts: str | Path | None


def split_moved(encoded_by: Mapping[str, Any] | None, moved: str | Path | None) -> Moved:
    """Returns which network is named: both networks of a tower, or either, if a folder encoded the texts.

    Args:
      encoded_by: See `Run.encoded_by`.
      moved: The run directory, weights or folder of a network.
    """
    if not moved or 'folder' not in (encoded_by or {}).get(ENTRY, {}).get('origin', {}):
        return Moved(moved, moved)
    path = Path(located(str(moved)))
    return Moved(None, moved) if path.is_dir() and not (path / FOLDER).is_dir() else Moved(moved, None)


def restore(encoded_by: Mapping[str, Any], workdir: Path, moved: str | Path | None = None) -> TextNetwork:
    """Returns the text encoder whose vectors a run was trained on.

    Args:
      encoded_by: See `Run.encoded_by`.
      workdir: The run directory.
      moved: The run directory, or the folder, of the text encoder, if it is not where it was.

    Raises:
      UserError: If it cannot be read, or is another encoder.
    """

    def read() -> tuple[TextNetwork, Mapping[str, Any]]:
        recorded = encoded_by[ENTRY]
        origin = recorded['origin']
        computed = (recorded['dtype'], recorded['precision'])
        if 'folder' in origin:
            return of_folder(moved or origin['folder'], *computed), recorded
        run = load_run(moved or origin['workdir'], origin['step'], origin['member'])
        return of_trained(run, *computed), recorded

    return check_restored(
        read,
        f'{workdir} was trained on vectors of a text encoder',
        'name its run directory, or its folder, with --encoder (jitm.load: encoder)',
        'vectors',
    )
