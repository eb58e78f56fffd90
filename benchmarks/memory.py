"""Computes the memory of the training steps of published settings on an accelerator, by XLA's analysis.

    python -m benchmarks memory                                        # one setting of every system
    python -m benchmarks memory --settings sgraf:sgr,f30k --batch_size 64

Nothing is run: steps are compiled for the CPU, with the tile sizes of accelerators, for random data of Flickr30K's
sizes (36 x 2048 features, the lengths of its captions). Compilers for GPUs and TPUs fuse other operations, so that the
peak there differs. It covers the state, which is updated in place, the batch, and the temporary memory of a step.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.members import num_bytes
from benchmarks.results import Row
from benchmarks.train_step import write_random_data
from jitm import configs
from jitm.configs import common
from jitm.data.text.wordpiece import MASK, SPECIAL_PIECES
from jitm.devices import parallel, policy
from jitm.training.setup import set_up

SETTINGS = (
    *('vsepp:vsepp,f30k', 'vse:rvsepp,selhn,f30k', 'vse_infinity:vse_infinity,gru,f30k', 'vsrn:f30k'),
    *('vse_infinity:esa,bert,f30k', 'scan:t2i,lse,f30k', 'bfan:equal,f30k', 'sgraf:sgr,f30k'),
    *('sgraf:saf,f30k', 'naaf:f30k', 'dbl:baseline,rm,oss,f30k', 'dbl:baseline,rm,mss,f30k'),
    *('uniter:uniter,base,f30k', 'uniter:uniter,large,f30k'),
    *('tags:tags_dc,base,f30k', 'tags:tags_dc,large,f30k'),
)
WORD_PIECES = 28996
ACCELERATORS = (16, 40, 80)  # GB
GIGABYTE, MILLION = 1e9, 1e6


def write_files(folder: Path) -> None:
    """Writes random data with boxes and object tags, and a vocabulary of as many word pieces as BERT's."""
    write_random_data(folder)
    tags = json.dumps([[f'w{n}', 0.9] for n in range(30)])
    for split in ('train', 'dev'):
        images = len(np.load(folder / f'{split}_ims.npy', mmap_mode='r'))
        (folder / f'{split}_tags.jsonl').write_text(f'{tags}\n' * images)
    np.save(folder / 'boxes.npy', np.tile(np.array([[0.1, 0.1, 0.6, 0.7]], np.float32), (36, 1)))
    write_pieces(folder / 'vocab.txt', WORD_PIECES)


def write_pieces(path: Path, count: int) -> None:
    """Writes a vocabulary of word pieces, such as BERT's, in which the words of `write_captions` are."""
    special = (*SPECIAL_PIECES, MASK)
    words = [*special, *(f'w{n}' for n in range(count - len(special)))]
    path.write_text('\n'.join(words) + '\n')


def with_files(
    setting: str,
    folder: Path,
    batch_size: int | None,
    encode_chunk: int | None = None,
    bert: bool = False,
    activations_mb: int | None = None,
) -> dict[str, Any]:
    """Returns the config of a setting with the files of a folder, and perhaps BERT base as its text encoder."""
    config = configs.load(setting)
    if bert:
        common.use_bert(config)
    config = config.to_dict() | {'encode_chunk': encode_chunk}
    config['data']['root'] = str(folder)
    config['run']['activations_mb'] = activations_mb
    config['batch_size'] = batch_size or config['batch_size']
    if config['vocabulary']['path']:
        config['vocabulary']['path'] = str(folder / 'vocab.txt')
    return config


def peak_bytes(compiled: Any) -> int:
    """Returns the bytes that a compiled step needs: its arguments, temporary memory, and outputs of their own."""
    sizes = compiled.memory_analysis()
    peak = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    return peak + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def measure(config: dict[str, Any]) -> Row:
    """Compiles the step of a config."""
    setup = set_up(config, resuming=True)
    state, batch = jax.eval_shape(setup.random_state), setup.make_batch(0)
    compiled = setup.train_step.lower(state, parallel.split_rows(batch)).compile()
    peak = peak_bytes(compiled)
    trained = [member.params for member in state.members.values()]
    fits = {f'in {size} GB': 'yes' if peak < size * GIGABYTE else 'no' for size in ACCELERATORS}
    return {
        'batch': config['batch_size'],
        'longest caption': batch.texts.ids.shape[-1],
        'million parameters': sum(leaf.size for leaf in jax.tree.leaves(trained)) / MILLION,
        'state GB': num_bytes(state) / GIGABYTE,
        'temporary GB': compiled.memory_analysis().temp_size_in_bytes / GIGABYTE,
        'peak GB': peak / GIGABYTE,
        **fits,
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--settings', nargs='+', default=SETTINGS, help='NAME:OPTIONS of settings')
    parser.add_argument('--batch_size', type=int, help='the published one if not given')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each setting."""
    policy.TILE_FLOATS['cpu'] = policy.TILE_FLOATS['gpu']
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for setting in args.settings:
            yield {'setting': setting, **measure(with_files(setting, Path(name), args.batch_size))}
            jax.clear_caches()
