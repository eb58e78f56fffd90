"""Compares whole training steps, and evaluations, of jitm with plain PyTorch.

    python -m benchmarks peers                                    # all systems
    python -m benchmarks peers --systems sgr saf --rounds 3 --steps 1
    python -m benchmarks peers --evaluate --systems vsepp scan

A step reads a batch from memory and has encoders, scores, loss, gradient, clipping of its norm and AdamW. Both sides
have the same parameters, batches and cores, and train in turns in processes of their own. Captions are those of
`--data_root`; images have random features of the published size. Networks and losses in PyTorch are in
`benchmarks.torch_networks` and `benchmarks.peer_torch`. The ratio is the median over the rounds; memory is the peak of
the process. The difference is that of the losses after ten steps without dropout, from the same parameters.

An evaluation encodes 1,000 images and their 5,000 captions, scores all pairs and ranks them. It is compared with the
loop of the released code; the first one of jitm compiles.
"""

import argparse
import pickle
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.results import Row
from benchmarks.workers import Answer, Worker
from jitm import configs
from jitm.data.splits import pad_texts, take_images
from jitm.errors import UserError
from jitm.importers import key_maps
from jitm.importers.clip_weights import HUGGING_FACE
from jitm.importers.joint_checkpoints import UNITER_NAMES
from jitm.importers.tensors import KeyMap, export
from jitm.training.setup import Setup, set_up
from jitm.types import Batch, Images, Texts

CHECKED = 10  # steps after which losses are compared
REGIONS = 36
FIELDS = 'counts', 'locations', 'pixels', 'lengths'  # besides regions and ids, which are cut


def no_change(config: ConfigDict, batch_size: int) -> None:
    """Leaves a config as published."""


def without_captioner(config: ConfigDict, batch_size: int) -> None:
    """Leaves out VSRN's captioner."""
    del batch_size
    config.model.caption = False
    del config.terms['caption']


def at_one_rate(config: ConfigDict, batch_size: int) -> None:
    """Trains a transformer at one rate and with a plain AdamW, as a user of PyTorch does first."""
    del batch_size
    config.optimizer = configs.load('vsepp:vsepp,f30k').optimizer
    config.optimizer.learning_rate = 1e-5


def with_few_candidates(config: ConfigDict, batch_size: int) -> None:
    """Scores three times as many candidates as the batch has queries, and keeps a twelfth of them, as published."""
    at_one_rate(config, batch_size)
    config.candidates.update(num_extra=2 * batch_size, num_hard=max(1, batch_size // 4))
    config.vocabulary.path = 'data/bert-base-uncased/vocab.txt'
    config.model.update(dtype='float32', heads=())


class System(NamedTuple):
    """A published setting, its network in PyTorch, and the names of its parameters there.

    `change` makes of the config what both sides do, for a size of batches, by default `batch_size`.
    """

    preset: str
    network: str
    names: KeyMap
    batch_size: int = 128
    change: Callable[[ConfigDict, int], None] = no_change


SYSTEMS = {
    'vsepp': System('vsepp:vsepp,f30k', 'torch_networks.VSE', key_maps.VSEPP),
    'vse_infinity': System('vse_infinity:vse_infinity,gru,f30k', 'torch_networks.PooledVSE', key_maps.POOLED),
    'rvse': System('vse:rvse,selhn,f30k', 'torch_networks.PooledVSE', key_maps.POOLED),
    'vsrn': System('vsrn:f30k', 'torch_networks.VSRN', key_maps.VSRN, change=without_captioner),
    'scan': System('scan:t2i,lse,f30k', 'torch_networks.SCAN', key_maps.SCAN),
    'bfan': System('bfan:equal,f30k', 'torch_networks.BFAN', key_maps.SCAN),
    'sgr': System('sgraf:sgr,f30k', 'torch_networks.SGRAF', key_maps.SGRAF),
    'saf': System('sgraf:saf,f30k', 'torch_networks.SGRAF', key_maps.SGRAF),
    'naaf': System('naaf:f30k', 'torch_networks.NAAF', key_maps.NAAF),
    'dbl': System('dbl:baseline,rm,oss,f30k', 'torch_networks.SGRAF', key_maps.DBL),
    'vse_bert': System('vse:rvsepp,selhn,f30k', 'torch_transformers.RVSEPlusPlus', key_maps.POOLED, 32, at_one_rate),
    'clip': System('clip:b32,softmax,f30k', 'torch_transformers.CLIP', HUGGING_FACE, 32, at_one_rate),
    'uniter': System('uniter:uniter,base,f30k', 'torch_transformers.UNITER', UNITER_NAMES, 4, with_few_candidates),
}
EVALUATED = [name for name in SYSTEMS if name != 'uniter']  # which reads each of 5 million pairs


def write_data(folder: Path, root: Path, features: int, images: int) -> None:
    """Writes random regions of some images, and the first captions of a *_precomp folder, five for each image."""
    rng = np.random.default_rng(0)
    for split in ('train', 'dev'):
        lines = (root / f'{split}_caps.txt').read_text(encoding='utf-8').splitlines()[: 5 * images]
        regions = rng.random((len(lines) // 5, REGIONS, features), np.float32).astype(np.float16)
        np.save(folder / f'{split}_ims.npy', regions)
        (folder / f'{split}_caps.txt').write_text('\n'.join(lines), encoding='utf-8')
    np.save(folder / 'boxes.npy', np.tile(np.array([[0.1, 0.1, 0.6, 0.7]], np.float32), (REGIONS, 1)))


def make_config(system: System, args: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Returns the config that both sides train: random parameters, and the ranking loss from the first step."""
    config = configs.load(system.preset)
    batch_size = args.batch_size or system.batch_size
    config.batch_size, config.drop_last, config.initialize = batch_size, True, dict.fromkeys(config.initialize, '')
    config.data.root = str(args.photos_root if config.data.source == 'photos.load' else data)
    config.vocabulary.min_count = 1
    for member in config.members.values():
        if 'init_from' in member:
            member.init_from = ''
    terms = {name: term for name, term in config.terms.to_dict().items() if name != 'warm_up'}
    config.terms = {name: dict(term, start_epoch=0) for name, term in terms.items()}
    system.change(config, batch_size)
    if args.embed_dim and 'embed_dim' in config.model:
        config.model.embed_dim = args.embed_dim
    return config.to_dict()


def without_dropout(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config whose rates of dropout are 0."""
    dropped = {key: 0.0 for key in section if key.endswith('dropout')}
    return {key: without_dropout(x) if isinstance(x, dict) else x for key, x in section.items()} | dropped


def arrays(images: Images, texts: Texts) -> dict[str, np.ndarray]:
    """Returns the arrays of images and captions, padded by zeros to the longest of them."""
    fields = vars(images) | vars(texts)
    fields = {name: fields[name] for name in FIELDS if fields[name] is not None}
    if images.regions is not None:
        fields['regions'] = np.where(images.mask[..., None], images.regions, 0)[:, : images.counts.max()]
    if texts.ids is not None:
        fields['ids'] = texts.ids[:, : texts.lengths.max()]
    return fields


def arrays_of_batch(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arrays of a batch, which extra pairs follow."""
    images, texts, index, extra = batch.images, batch.texts, batch.image_index, 0
    if 'shortlist' in batch.drawn:
        pairs, shortlisted = batch.drawn['shortlist']
        images, texts, index = jax.tree.map(
            lambda *x: np.concatenate(x), (images, texts, index), (pairs.images, pairs.texts, shortlisted)
        )
        extra = len(shortlisted)
    return arrays(images, texts) | {'image_index': index, 'num_extra': np.array(extra)}


def write_inputs(folder: Path, system: System, config: dict[str, Any], steps: int) -> None:
    """Writes what both sides read: the config, its network for PyTorch, parameters, and batches or a split."""
    setup = set_up(config)
    for name, member in setup.initial_state().members.items():
        np.savez(folder / f'{name}.npz', **export(member.variables, system.names))
    (folder / 'jitm.pkl').write_bytes(pickle.dumps((config, not steps)))
    (folder / 'torch.pkl').write_bytes(pickle.dumps(describe(system, config, setup)))
    for step in range(steps):
        np.savez(folder / f'{step}.npz', **arrays_of_batch(setup.make_batch(step)))
    if not steps:
        split, tokens = setup.data.validation, setup.data.validation_tokens
        images = take_images(split, np.arange(split.num_images), setup.pipeline.reads)
        texts = pad_texts(tokens, np.arange(split.num_texts), tokens.lengths.max())
        np.savez(folder / 'images.npz', **arrays(images, Texts(None, None)))
        np.savez(folder / 'texts.npz', **arrays(Images(), texts), image_of_text=split.image_of_text)


def describe(system: System, config: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """Returns what `peer_torch` makes its networks, losses and optimizers from."""
    candidates, features = config['candidates'], setup.data.train.regions
    members = {}
    for name, member in config['members'].items():
        anchor = next(iter(member['learn_from']), None)
        terms = [term for term in config['terms'].values() if anchor or not term['loss'].startswith('anchored.')]
        members[name] = terms, anchor
    return {
        'network': f'benchmarks.{system.network}',
        'sizes': (config['model'], len(setup.data.vocabulary), None if features is None else features.shape[-1]),
        'options': {'num_hard': candidates['num_hard']} if 'num_hard' in candidates else {},
        'members': members,
        'optimizer': config['optimizer'],
        'same_image': candidates.get('same_image', 'negative'),
    }


def take_turns(folder: Path, cores: int, first: object, work: object, rounds: int) -> list[list[Answer]]:
    """Returns the answers of jitm and of PyTorch to the first work, which compiles, and to other work in each round."""
    with Worker('peer_jitm', folder, cores) as jitm, Worker('peer_torch', folder, cores) as torch:
        sides = jitm, torch
        answers = [[side(first) for side in sides]]
        for number in range(rounds):  # each side starts every other round
            turn = slice(None, None, -1 if number % 2 else 1)
            answers.append([side(work) for side in sides[turn]][turn])
    return answers


def compared(answers: list[list[Answer]], count: int) -> Row:
    """Returns the work done per second in the rounds, of both sides, their ratio and their memory."""
    ours, theirs = zip(*answers, strict=True)
    return {
        'jitm steps/s': count / statistics.median(run.seconds for run in ours),
        'PyTorch steps/s': count / statistics.median(run.seconds for run in theirs),
        'ratio': statistics.median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True)),
        'jitm MiB': ours[-1].mebibytes,
        'PyTorch MiB': theirs[-1].mebibytes,
    }


def train(system: System, config: dict[str, Any], args: argparse.Namespace) -> Row:
    """Compares training steps, and the losses after some of them without dropout."""
    checked, timed = list(range(CHECKED)), list(range(args.steps))
    plain = without_dropout(config)
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), system, plain, CHECKED)
        answers = take_turns(Path(folder), args.cores, checked, timed, args.rounds if plain == config else 0)
    ours, theirs = (answer.numbers[-1] for answer in answers[0])
    if plain != config:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(Path(folder), system, config, args.steps)
            answers = take_turns(Path(folder), args.cores, timed, timed, args.rounds)
    return {
        'batch': config['batch_size'],
        **compared(answers[1:], args.steps),
        'difference of losses': abs(ours - theirs) / abs(theirs),
    }


def evaluate(system: System, config: dict[str, Any], args: argparse.Namespace) -> Row:
    """Compares evaluations."""
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), system, config, 0)
        first, *answers = take_turns(Path(folder), args.cores, None, None, args.rounds)
    row = compared(answers, 1)
    seconds = {f'{side} s': 1 / row.pop(f'{side} steps/s') for side in ('jitm', 'PyTorch')}
    ours, theirs = (answer.numbers[0] for answer in first)
    return seconds | row | {'jitm s, first': first[0].seconds, 'difference of rsum': abs(ours - theirs)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, help='all if not given')
    parser.add_argument('--evaluate', action='store_true', help='compare evaluations instead of training steps')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=5, choices=range(1, CHECKED + 1), help='steps of a round')
    parser.add_argument('--batch_size', type=int, help='128 if not given; 32 for BERT and CLIP, 4 for UNITER')
    parser.add_argument('--images', type=int, default=1000, help='images that are trained on or evaluated')
    parser.add_argument('--features', type=int, default=2048, help='numbers of the random features of a region')
    parser.add_argument('--embed_dim', type=int, help='of the joint space; the published one if not given')
    parser.add_argument('--cores', type=int, default=2, help='of both sides')
    parser.add_argument('--data_root', type=Path, default=Path('data/f8k_precomp'), help='a *_precomp folder')
    parser.add_argument('--photos_root', type=Path, default=Path('data/f8k_photos'), help='the photos of CLIP')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each system."""
    measure, systems = (evaluate, EVALUATED) if args.evaluate else (train, [*SYSTEMS])
    if unknown := [name for name in args.systems or () if name not in systems]:
        raise UserError(f'{unknown[0]} would read 5 million pairs: leave it out of --systems, or leave out --evaluate')
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), args.data_root, args.features, args.images)
        for name in args.systems or systems:
            config = make_config(SYSTEMS[name], args, Path(folder))
            yield {'system': name, **measure(SYSTEMS[name], config, args)}
