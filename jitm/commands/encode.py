"""Encode photos once: write the features of an image network, which models of features train on.

    jitm encode --workdir runs/vsepp --out data/mine_precomp
    jitm encode --config vsepp:vsepp,f30k,vgg19 --out data/mine_precomp --crops 10
    jitm encode --workdir runs/clip_b32 --out data/mine_cells

The network is that of a trained run, or of a config with its initial weights, see config key initialize.image. The
output has the layout of data.source precomp.load: one vector for each image, or the cells of the last map as regions.
A CLIP has cells, before the projection: the patches of a vision transformer after the last normalization, or the last
map of a residual network. Vectors of its joint space: `jitm eval --save_vectors`.
A stopped job resumes with the split that it has not finished. All splits of a folder have the features of one network.
"""

import logging
from pathlib import Path

import jax
import tqdm
from absl import flags

from jitm import ranges
from jitm.commands import flags as shared
from jitm.config import load_split
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import features
from jitm.runs.interrupt import interruptible
from jitm.runs.run import load_run
from jitm.training.build.run import set_up

TAKES_CONFIG = True
REQUIRED = ('out',)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_string('out', None, 'The output folder.', flag_values=values)
    flags.DEFINE_multi_string('split', ['train', 'dev'], 'A split to encode; repeat the flag.', flag_values=values)
    flags.DEFINE_integer('crops', 1, '1 for the centre of each photo, 10 for ten crops.', flag_values=values)
    flags.DEFINE_enum('precision', 'float32', ('float32', 'float16'), 'Of the features.', flag_values=values)
    shared.define(values, 'workdir', 'step', 'member', 'data_root', 'compilation_cache')


def _read_network(values: flags.FlagValues) -> tuple[features.Network, dict]:
    """Returns the network of a run or of a config, and the config's `data`."""
    if (values.config is None) == (values.workdir is None):
        raise UserError('give either --workdir or --config')
    shared.check_read(values, '--workdir', values.workdir, 'step')
    if values.workdir is not None:
        run = load_run(values.workdir, values.step, values.member)
        return features.Network(run.model, run.variables, values.crops, values.precision), run.config['data']
    config = ranges.check(values.config.to_dict())
    setup, member = set_up(config), values.member or config['evaluation']['member']
    if member not in setup.members:
        raise UserError(f"the config has no member '{member}'; it has {', '.join(setup.members)}")
    variables = jax.device_get(setup.initial_state().members[member].variables)
    network = features.Network(setup.members[member].model, variables, values.crops, values.precision)
    if not config['initialize']['image'] and not config['members'][member]['init_from']:
        logging.warning('the network has random parameters: set initialize.image, or give --workdir')
    return network, config['data']


def _encode(network: features.Network, split: Split, name: str, folder: Path) -> bool:
    """Encodes a split with a progress bar; returns whether it was written, see `features.write`."""
    bar = tqdm.tqdm(
        desc=split.name, total=split.num_images, unit=' images', disable=None, dynamic_ncols=True, leave=False
    )
    with bar:
        return features.write(network, split, name, folder, bar.update)


def main(values: flags.FlagValues) -> None:
    """Checks all splits, encodes each, and prints what was written."""
    folder = Path(values.out)
    network, data = _read_network(values)
    with interruptible(folder):
        splits = {name: load_split(data, name, values.data_root) for name in values.split}
        warnings = [warning for split in splits.values() for warning in features.check(network, split)]
        features.output_folder(folder, splits)  # before the first one is encoded
        for warning in dict.fromkeys(warnings):  # each of them once
            logging.warning(warning)
        for name, split in splits.items():
            written = _encode(network, split, name, folder)
            print(f'{split.name}: {split.num_images} images {"encoded" if written else "had been encoded"}')
    print(f"\nwritten to {folder}; train with config key 'data' dict(source='precomp.load', root='{folder}')")
