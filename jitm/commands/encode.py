"""`jitm encode`, see `usage.encode`."""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tqdm
from absl import flags

from jitm.commands import programs
from jitm.data.images import photos
from jitm.data.load import bind_data
from jitm.data.precomp import FEATURES
from jitm.data.splits import Split, check_images
from jitm.encoders import features, networks, text_network
from jitm.errors import UserError
from jitm.importers.named_folders import complete
from jitm.runs.interrupt import interruptible
from jitm.runs.run import Run, load_run
from jitm.serving.images import make_transform


def _read_splits(data: Mapping[str, Any], run: Run | None, values: flags.FlagValues) -> dict[str, Split]:
    """Returns the images by the names of their files, decoded by the config's `data`."""
    if not values.images:
        load = bind_data(data, values.data_root, imports=run is None)
        return {name: load(name) for name in values.split}
    size = data.get('image_size') if run is None else run.image_size[0]
    if size is None:
        raise UserError("config key 'data.image_size' is missing: give a config whose data are photos, or --workdir")
    split = photos.load_folder(Path(values.images), make_transform(size, data))
    return {split.name: split}


def _make_network(
    config: Mapping[str, Any], member: str, splits: Iterable[Split], *computed: int | str
) -> networks.FeatureNetwork:
    """Returns the initial network of a config; for the last arguments see `networks.of_config`."""
    reads = networks.model_of_pixels(config, member, imports=True).reads
    for split in splits:
        check_images(split, reads)
    image_size = next(iter(splits)).pixels.shape[1:3]
    network = networks.of_config(config, member, image_size, *computed)
    if not config['initialize']['image'] and not config['members'][member].get('init_from'):
        logging.warning('the network has random parameters: set initialize.image, or give --workdir')
    return network


def _text_network(run: Run | None, values: flags.FlagValues, *computed: str) -> text_network.TextNetwork | None:
    """Returns the text encoder that the flags name, None without one; `computed` is its dtype and its precision."""
    if values.text_encoder:
        return text_network.of_folder(values.text_encoder, *computed)
    return text_network.of_trained(run, *computed) if values.texts else None


def _encode(write: Callable[..., bool], title: str, total: int, unit: str) -> None:
    """Encodes a part of a split with a progress bar; `write` is `features.write` or `write_texts` without `report`."""
    bar = tqdm.tqdm(desc=title, total=total, unit=f' {unit}', disable=None, dynamic_ncols=True, leave=False)
    with bar:
        written = write(report=bar.update)
    print(f'{title}: {total} {unit} {"encoded" if written else "had been encoded"}')


def _print_next(folder: Path, splits: Mapping[str, Split], values: flags.FlagValues) -> None:
    """Prints where the features are, and commands that read them."""
    print(f'\nwritten      {folder}')
    for name, split in splits.items():
        if not split.captions:
            path = folder / f'{name}{FEATURES}'
            print(f'search       {programs.jitm("search", "--workdir", "RUN", "--images", path, "CAPTION")}')
    if {'train', 'dev'} <= splits.keys():
        cells = (folder / 'boxes.npy').exists()
        of_images = 'scan:t2i,lse,f8k' if cells else f'vsepp:vsepp,f8k_{values.crops}c'
        preset = 'heads:gpo,softmax,f8k' if values.texts or values.text_encoder else of_images
        root = f'--config.data.root={folder}'
        print(f'train        {programs.jitm("train", "--config", preset, "--workdir", "runs/features", root)}')


def main(values: flags.FlagValues) -> None:
    """Checks all splits, encodes each, and prints the written files."""
    folder = Path(values.out)
    run = load_run(values.workdir, values.step, values.member) if values.workdir else None
    config = complete(values.config) if run is None else run.config
    computed = values.crops, values.dtype, values.precision or config['evaluation']['precision']
    with interruptible(folder):
        of_texts = _text_network(run, values, *computed[1:])
        splits = _read_splits(config['data'], run, values)
        if run is None:
            member = values.member or config['evaluation']['member']
            network = _make_network(config, member, splits.values(), *computed)
        else:
            network = networks.of_run(run, *computed)
        warnings = itertools.chain(*(features.check(network, split) for split in splits.values()))
        features.output_folder(folder, splits)  # before the first one is encoded
        for warning in dict.fromkeys(warnings):  # each of them once
            logging.warning(warning)
        for name, split in splits.items():
            images = functools.partial(features.write, network, split, name, folder)
            _encode(images, split.name, split.num_images, 'images')
            if of_texts is not None:
                captions = functools.partial(features.write_texts, of_texts, split, name, folder)
                _encode(captions, split.name, split.num_texts, 'captions')
    _print_next(folder, splits, values)
