"""Feature extractors, and the restoration of the one that encoded a run's training data."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm.config import build as config_lib
from jitm.config import schema
from jitm.config.section import bind
from jitm.devices import parallel, policy
from jitm.errors import UserError
from jitm.files import describe, expand, hash_arrays
from jitm.files.packages import PACKAGES
from jitm.importers import pretrained
from jitm.importers.pretrained import replace
from jitm.inference.engine import pad
from jitm.layers.normalization import l2_normalize
from jitm.models.make import make_model, member_model, model_keys
from jitm.models.matcher import Matcher
from jitm.runs.run import Run, load_run
from jitm.types import Images, Precision

CROPS = (1, 10)
IMAGES_PER_CALL = 64  # per device; a tenth of them with ten crops
PARTS = 'params', 'batch_stats'


@dataclasses.dataclass(frozen=True, repr=False)
class FeatureNetwork:
    """An image network with its parameters.

    Attributes:
      model: A matcher whose `image` computes `features` of pixels, with the flag `normalize_features`.
      variables: The parameters and statistics of `image`.
      crops: 1 for the centre of each photo (1C); 10 for the mean of ten crops (10C).
      dtype: The dtype of the features, 'float32' or 'float16'.
      precision: The precision of the products that compute them.
      origin: Where the parameters are from, as JSON: `workdir`, `step` and `member` of a run, or a `config` and its
        `member`.
    """

    model: Matcher
    variables: chex.ArrayTree
    crops: int
    dtype: str
    precision: Precision
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """All inputs of the features besides the images, as JSON."""
        parameters = hash_arrays(jax.tree.leaves(jax.device_get(self.variables)))
        return {
            'network': describe(self.model.image),
            'parameters': parameters,
            'crops': self.crops,
            'dtype': self.dtype,
            'precision': self.precision,
        }

    @property
    def images_per_call(self) -> int:
        """The number of images that are encoded at a time."""
        return max(1, policy.images_per_call(IMAGES_PER_CALL) // self.crops) * parallel.num_local_devices()

    def encode(self, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Encodes images; the next batch is read while one is encoded.

        Args:
          batches: Crops of up to `images_per_call` images, uint8 [n, C, H, W, 3].

        Yields:
          The features of each batch, [n, R, F] of `dtype`: the inputs of the encoder after the network, normalized if
          `normalize_features` is set.
        """
        compiled = parallel.map_rows(features_of, self.model, precision=self.precision)

        def start(pixels: np.ndarray) -> tuple[int, chex.Array]:
            padded = parallel.put_rows(pad(pixels, self.images_per_call))
            return len(pixels), compiled(padded, self._placed)

        started = map(start, batches)
        waiting = next(started, None)
        while waiting is not None:
            count, features = waiting
            waiting = next(started, None)
            with np.errstate(over='ignore'):
                features = jax.device_get(features)[:count].astype(self.dtype)
            yield features

    @functools.cached_property
    def _placed(self) -> chex.ArrayTree:
        return parallel.put_everywhere(self.variables)


def features_of(model: Matcher, pixels: chex.Array, variables: chex.ArrayTree) -> chex.Array:
    """Returns the features of pixels [N, C, H, W, 3], the mean over C crops: float32 [N, R, F]."""

    def features(matcher: Matcher) -> chex.Array:
        flat = pixels.reshape(-1, *pixels.shape[2:])
        values = matcher.image.features(Images(pixels=flat))
        values = values.reshape(*pixels.shape[:2], *values.shape[1:]).mean(axis=1)
        return l2_normalize(values) if matcher.image.normalize_features else values

    return model.apply(variables, method=features)


def check_model(model: Matcher) -> None:
    """Raises a UserError unless a model has a network with features of pixels."""
    if 'pixels' not in model.reads or not hasattr(getattr(model, 'image', None), 'features'):
        raise UserError(f'{type(model).__name__} as configured has no network that reads pixels: use a model with one')


def _image_part(variables: Mapping[str, chex.ArrayTree]) -> dict[str, chex.ArrayTree]:
    return {part: {'image': variables[part]['image']} for part in PARTS if 'image' in variables.get(part, {})}


def of_run(run: Run, crops: int, dtype: str, precision: Precision) -> FeatureNetwork:
    """Returns the network of a trained run; for the arguments see `FeatureNetwork`.

    Raises:
      UserError: If its model has none.
    """
    check_model(run.model)
    return FeatureNetwork(run.model, _image_part(run.variables), crops, dtype, precision, origin_of(run))


def origin_of(run: Run) -> dict[str, Any]:
    """Returns the `origin` of a network of a run."""
    return {'workdir': str(run.workdir.absolute()), 'step': run.step, 'member': run.member}


def model_of_pixels(config: Mapping[str, Any], member: str, imports: bool = False) -> Matcher:
    """Returns the model of a member of a config, whose words do not matter.

    Args:
      config: A nested dict.
      member: Name of the model in the config's `members`.
      imports: Whether modules of the user are imported; only for a config that the user wrote.

    Raises:
      UserError: If there is no such member, or it has no network that reads pixels.
    """
    if member not in config['members']:
        raise UserError(f"the config has no member '{member}'; it has {', '.join(config['members'])}")
    section = member_model(config, member)
    model = make_model(section, vocab_size=1, own=True, imports=imports)
    check_model(model)
    return model


def of_config(
    config: Mapping[str, Any],
    member: str,
    image_size: tuple[int, int],
    crops: int,
    dtype: str,
    precision: Precision,
) -> FeatureNetwork:
    """Returns the network with which a config starts to train.

    Args:
      config: A nested dict, checked by `config.schema.check`.
      member: Name of the model in the config's `members`.
      image_size: H and W of the pixels.
      crops: See `FeatureNetwork`.
      dtype: See `FeatureNetwork`.
      precision: See `FeatureNetwork`.

    Raises:
      UserError: If the model has no network that reads pixels, or its weights cannot be read.
    """
    model = model_of_pixels(config, member)
    section = dict(config['members'][member])
    initialize = dict(config['initialize'])
    weights = initialize['image']
    if section.get('init_from'):
        section['init_from'] = str(Path(section['init_from']).absolute())
        variables = load_run(section['init_from']).variables
    else:
        pixels = Images(pixels=np.zeros((1, *image_size, 3), np.uint8))
        key = jax.random.fold_in(jax.random.key(config['seed']), 0)  # the key of the first member that trains
        with model_keys():
            initial = jax.jit(functools.partial(model.init, method='encode_image'))(key, pixels)
        variables = {part: dict(initial.get(part, {})) for part in PARTS}
        if weights:
            initialize['image'] = weights if weights in PACKAGES else str(Path(weights).absolute())
            names = dict.fromkeys(initialize, '') | {'image': initialize['image']}
            loaded = bind(pretrained.DECLARED, names, 'initialize')(variables, (), model)
            variables = {part: replace(variables[part], values) for part, values in loaded.items()}
    described = {**config, 'members': {**config['members'], member: section}, 'initialize': initialize}
    origin = {'config': config_lib.to_json(described), 'member': member}
    return FeatureNetwork(model, _image_part(variables), crops, dtype, precision, origin)


def restore(encoded_by: Mapping[str, Any], workdir: Path, moved: str | Path | None = None) -> FeatureNetwork:
    """Returns the network that encoded the features of a run.

    Args:
      encoded_by: See `Run.encoded_by`.
      workdir: The run directory.
      moved: The run directory, or the file of weights, of the network, if it is not where it was.

    Raises:
      UserError: If it cannot be read, or is another network.
    """

    def read() -> tuple[FeatureNetwork, Mapping[str, Any]]:
        origin, *computed = (encoded_by[key] for key in ('origin', 'crops', 'dtype', 'precision'))
        if 'workdir' in origin:
            run = load_run(moved or origin['workdir'], origin['step'], origin['member'])
            return of_run(run, *computed), encoded_by
        config = schema.check(origin['config'])
        member = config['members'][origin['member']]
        if moved and member.get('init_from'):
            member['init_from'] = expand(str(moved))
        elif moved:
            config['initialize']['image'] = expand(str(moved))
        return of_config(config, origin['member'], tuple(encoded_by['image_size']), *computed), encoded_by

    return check_restored(
        read,
        f'{workdir} was trained on features of a network',
        'name its run directory, or its file of weights, with --encoder (jitm.load: encoder)',
        'features',
    )


def check_restored(read: Callable[[], tuple[Any, Mapping[str, Any]]], described: str, remedy: str, outputs: str) -> Any:
    """Returns a network that a run needs.

    Args:
      read: A function that returns the network, and its identity as recorded by the run.
      described: The training inputs of the run, for messages.
      remedy: How to name a network that has moved.
      outputs: The outputs of the network, for messages.

    Raises:
      UserError: If the network cannot be read, or has another identity.
    """
    try:
        network, recorded = read()
        differing = [key for key, value in network.identity.items() if recorded[key] != value]
    except UserError as error:
        raise UserError(f'{described} that cannot be read: {error}; {remedy}') from None
    except (KeyError, TypeError, AttributeError):
        raise UserError(f'{described} whose record is damaged; train again on {outputs} of jitm encode') from None
    if differing:
        raise UserError(f'{described} that differs from the one found ({", ".join(differing)}); {remedy}')
    return network
