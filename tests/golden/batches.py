"""The training batches of tiny settings as digests of all their arrays.

`python -m tests.golden.batches` writes `batches.json` anew, and with `--compare` prints which settings have other
batches than the file. Both take names of settings: `python -m tests.golden.batches --compare vsrn:f30k`.
"""

from pathlib import Path

import numpy as np

from tests.golden.presets import PRESETS, compute, digest, main, make_setup, named

STEPS = 20  # of two epochs
SHARDED_STEPS = 3
NAMES = (*PRESETS, 'scan:i2t,lse,f30k batch_size=12 length_multiple=1')  # whose last batch of an epoch is smaller


def hash_batches(name: str, folder: Path) -> dict[str, str]:
    """Hashes the batches of a setting.

    Args:
      name: The name of the tiny setting, see `steps.make_config`.
      folder: The folder with the files of `steps.write_files`.

    Returns:
      The digests of the first `whole` batches, and of the two `shards` of some.
    """
    pipeline = make_setup(name, folder).pipeline
    whole = [pipeline.batch(step) for step in range(STEPS)]
    shards = [pipeline.batch(step, shard, 2) for step in range(SHARDED_STEPS) for shard in range(2)]
    return {'whole': digest(*map(hash_batch, whole)), 'shards': digest(*map(hash_batch, shards))}


def hash_batch(batch: object) -> str:
    """Hashes the names, types, shapes and bytes of the arrays of a batch."""
    leaves = ((name, np.asarray(leaf)) for name, leaf in sorted(named('batch', batch), key=lambda pair: pair[0]))
    return digest(*(part for name, x in leaves for part in (name, x.dtype, x.shape, x.tobytes())))


if __name__ == '__main__':
    main('batches.json', lambda names: compute(names, hash_batches), NAMES)
