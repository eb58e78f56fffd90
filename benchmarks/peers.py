"""Compares whole training steps, and evaluations, of jitm with plain PyTorch, and both with the limit of the machine.

    python -m benchmarks peers                                    # all systems
    python -m benchmarks peers --systems sgr saf --rounds 3
    python -m benchmarks peers --evaluate --systems vsepp scan --rounds 1

A step reads a batch from memory and has encoders, scores, loss, gradient, clipping of its norm and AdamW. Both sides
have the same parameters, batches and cores, and train in turns in processes of their own. Captions are those of
`--data_root`; images have random features of the published size. Networks and losses in PyTorch are in
`benchmarks.torch_networks` and `benchmarks.peer_torch`. They run eagerly or through `torch.compile`, whichever was
faster in a few steps before; if compiling fails, the mode names the error.

GFLOP are those that the products of a step need, see `benchmarks.products`. The product rate is that of 2048 x 2048
products in float32 by jax, measured after each round, and the percentages are shares of it. A round is a step of both
sides. Columns have medians over the rounds in which no side compiles, without the first, and the ratio is the median of
their ratios. Memory is the peak of the process.

The difference of losses is the largest relative one of `--checked` steps without dropout, from the same parameters.
They are also timed if the config has no dropout, and otherwise `--rounds` other steps are.

An evaluation encodes 1,000 images and their 5,000 captions, scores all pairs and ranks them. It is compared with the
loop of the released code; the first one of jitm compiles.
"""

import argparse
import itertools
import operator
import pickle
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import products
from benchmarks.products import Inputs, Product
from benchmarks.results import Row
from benchmarks.workers import Answer, Worker, WorkerError
from jitm import configs
from jitm.data.splits import pad_texts, take_images
from jitm.errors import UserError
from jitm.importers import key_maps
from jitm.importers.clip_weights import HUGGING_FACE
from jitm.importers.joint_checkpoints import UNITER_NAMES
from jitm.importers.tensors import KeyMap, export
from jitm.training.setup import Setup, set_up
from jitm.types import Batch, Images, Texts

EAGER, COMPILED, FASTER = 'eager', 'compile', 'faster'  # modes of PyTorch, and the faster one
DECIDING = 2  # timed steps, or evaluations, of both modes
GIGA = 1e9
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
    """A published setting, and its network in PyTorch.

    Attributes:
      preset: The name of its config.
      network: The class in PyTorch.
      names: The names of the parameters there.
      products: The products of the network, a function of the config's `model`, sizes of the inputs, and options.
      batch_size: The default of the number of pairs.
      change: Makes of the config what both sides do, for a number of pairs.
    """

    preset: str
    network: str
    names: KeyMap
    products: Callable[..., list[Product]]
    batch_size: int = 128
    change: Callable[[ConfigDict, int], None] = no_change


SYSTEMS = {
    'vsepp': System('vsepp:vsepp,f30k', 'torch_networks.VSE', key_maps.VSEPP, products.vse),
    'vse_infinity': System(
        'vse_infinity:vse_infinity,gru,f30k', 'torch_networks.PooledVSE', key_maps.POOLED, products.vse
    ),
    'rvse': System('vse:rvse,selhn,f30k', 'torch_networks.PooledVSE', key_maps.POOLED, products.vse),
    'vsrn': System('vsrn:f30k', 'torch_networks.VSRN', key_maps.VSRN, products.vsrn, change=without_captioner),
    'scan': System('scan:t2i,lse,f30k', 'torch_networks.SCAN', key_maps.SCAN, products.words_attend),
    'bfan': System('bfan:equal,f30k', 'torch_networks.BFAN', key_maps.SCAN, products.both_attend),
    'sgr': System('sgraf:sgr,f30k', 'torch_networks.SGRAF', key_maps.SGRAF, products.sgraf),
    'saf': System('sgraf:saf,f30k', 'torch_networks.SGRAF', key_maps.SGRAF, products.sgraf),
    'naaf': System('naaf:f30k', 'torch_networks.NAAF', key_maps.NAAF, products.words_attend),
    'dbl': System('dbl:baseline,rm,oss,f30k', 'torch_networks.SGRAF', key_maps.DBL, products.sgraf),
    'vse_bert': System(
        'vse:rvsepp,selhn,f30k', 'torch_transformers.RVSEPlusPlus', key_maps.POOLED, products.vse, 32, at_one_rate
    ),
    'clip': System('clip:b32,softmax,f30k', 'torch_transformers.CLIP', HUGGING_FACE, products.clip, 32, at_one_rate),
    'uniter': System(
        *('uniter:uniter,base,f30k', 'torch_transformers.UNITER', UNITER_NAMES, products.uniter),
        *(4, with_few_candidates),
    ),
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


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the network in PyTorch and the count of its products need besides the config's `model`."""
    candidates = config['candidates']
    return {'num_hard': candidates['num_hard']} if 'num_hard' in candidates else {}


def list_products(system: System, config: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> list[Product]:
    """Returns the products of one network of the config on the arrays of a batch or of a split."""
    features = inputs['regions'].shape[-1] if 'regions' in inputs else 0
    counts = inputs['counts'] if 'counts' in inputs else np.ones(len(inputs['pixels']), int)
    sizes = Inputs(counts, inputs['lengths'], features, int(inputs.get('num_extra', 0)))
    return system.products(config['model'], sizes, **options(config))


def write_inputs(folder: Path, system: System, config: dict[str, Any], steps: int) -> dict[int | str, float]:
    """Writes what both sides read: the config, its network for PyTorch, parameters, and batches or, for 0, a split.

    Returns:
      The commands, a number for each step or 'evaluate' -> the operations that its products need.
    """
    setup = set_up(config)
    for name, member in setup.initial_state().members.items():
        np.savez(folder / f'{name}.npz', **export(member.variables, system.names))
    (folder / 'jitm.pkl').write_bytes(pickle.dumps((config, not steps)))
    (folder / 'torch.pkl').write_bytes(pickle.dumps(describe(system, config, setup)))
    if not steps:
        inputs = write_split(folder, setup)
        return {'evaluate': products.forward(list_products(system, config, inputs))}
    operations = {}
    for step in range(steps):
        batch = arrays_of_batch(setup.make_batch(step))
        np.savez(folder / f'{step}.npz', **batch)
        operations[step] = len(config['members']) * products.training(list_products(system, config, batch))
    return operations


def write_split(folder: Path, setup: Setup) -> dict[str, np.ndarray]:
    """Writes the split that is evaluated, and returns its arrays."""
    split, tokens = setup.data.validation, setup.data.validation_tokens
    images = arrays(take_images(split, np.arange(split.num_images), setup.pipeline.reads), Texts(None, None))
    texts = arrays(Images(), pad_texts(tokens, np.arange(split.num_texts), tokens.lengths.max()))
    np.savez(folder / 'images.npz', **images)
    np.savez(folder / 'texts.npz', **texts, image_of_text=split.image_of_text)
    return images | texts


def describe(system: System, config: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """Returns what `peer_torch` makes its networks, losses and optimizers from."""
    features = setup.data.train.regions
    members = {}
    for name, member in config['members'].items():
        anchor = next(iter(member['learn_from']), None)
        terms = [term for term in config['terms'].values() if anchor or not term['loss'].startswith('anchored.')]
        members[name] = terms, anchor
    return {
        'network': f'benchmarks.{system.network}',
        'sizes': (config['model'], len(setup.data.vocabulary), None if features is None else features.shape[-1]),
        'options': options(config),
        'members': members,
        'optimizer': config['optimizer'],
        'same_image': config['candidates'].get('same_image', 'negative'),
    }


class Round(NamedTuple):
    """A command, the answers of both sides, and the product rate after it in GFLOP/s."""

    work: int | str
    ours: Answer
    theirs: Answer
    rate: float


class Measured(NamedTuple):
    """The rounds of both sides, the operations that the products of each command need, and the mode of PyTorch."""

    rounds: list[Round]
    operations: Mapping[int | str, float]
    mode: str


def take_turns(sides: tuple[Worker, Worker], works: Iterable[int | str]) -> Iterator[tuple[int | str, list[Answer]]]:
    """Yields each command and the answers of both sides, which start in turns."""
    for number, work in enumerate(works):
        order = slice(None, None, -1 if number % 2 else 1)
        yield work, [side(work) for side in sides[order]][order]


def timed(rounds: list[Round]) -> list[Round]:
    """Returns the rounds that count: not the first, and none in which a side compiles."""
    return [turn for turn in rounds[1:] if not (turn.ours.compiled or turn.theirs.compiled)]


def faster_mode(folder: Path, cores: int, works: Iterable[int | str]) -> str:
    """Returns the mode in which PyTorch does some work faster, with the error if it cannot be compiled."""
    pairs = []
    with Worker('peer_torch', folder, cores, EAGER) as eager, Worker('peer_torch', folder, cores, COMPILED) as compiled:
        turns = take_turns((eager, compiled), itertools.cycle(works))
        try:
            next(turns)
            while len(pairs) < DECIDING:
                _, answers = next(turns)
                if not answers[1].compiled:
                    pairs.append(answers)
        except WorkerError as error:
            return f'{EAGER} ({COMPILED}: {error.reason})'
    plain_seconds = min(plain.seconds for plain, _ in pairs)
    compiled_seconds = min(fused.seconds for _, fused in pairs)
    return COMPILED if compiled_seconds < plain_seconds else EAGER


def measure(
    system: System, config: dict[str, Any], args: argparse.Namespace, steps: int, least: int, rounds: int
) -> Measured:
    """Compares steps or, if there are 0, evaluations.

    Args:
      system: The system.
      config: Its config.
      args: The flags.
      steps: The number of batches, which steps read again and again.
      least: The number of rounds at least.
      rounds: The number of timed ones at least; if it is 0, PyTorch runs eagerly.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = []
        operations = write_inputs(folder, system, config, steps)
        mode = args.torch if rounds else EAGER
        if mode == FASTER:
            mode = faster_mode(folder, args.cores, range(steps) if steps else ['evaluate part'])
        with Worker('peer_jitm', folder, args.cores) as jitm, Worker('peer_torch', folder, args.cores, mode) as torch:
            for work, answers in take_turns((jitm, torch), itertools.cycle(operations)):
                done.append(Round(work, *answers, jitm('product').number))
                if len(done) >= least and len(timed(done)) >= rounds:
                    break
    return Measured(done, operations, mode)


def summary(measured: Measured) -> Row:
    """Returns the medians over the timed rounds, and the memory."""
    rounds = timed(measured.rounds)
    last = measured.rounds[-1]
    needed = [measured.operations[turn.work] / GIGA for turn in rounds]
    ours = [turn.ours.seconds for turn in rounds]
    theirs = [turn.theirs.seconds for turn in rounds]
    rate = statistics.median(turn.rate for turn in rounds)

    def share(seconds: list[float]) -> float:
        return 100 * statistics.median(map(operator.truediv, needed, seconds)) / rate

    return {
        'GFLOP': statistics.mean(needed),
        'product GFLOP/s': rate,
        'jitm s': statistics.median(ours),
        'PyTorch s': statistics.median(theirs),
        'PyTorch mode': measured.mode,
        'jitm % of the rate': share(ours),
        'PyTorch % of the rate': share(theirs),
        'ratio': statistics.median(map(operator.truediv, theirs, ours)),
        'jitm MiB': last.ours.mebibytes,
        'PyTorch MiB': last.theirs.mebibytes,
    }


def train(system: System, config: dict[str, Any], args: argparse.Namespace) -> Row:
    """Compares training steps, and losses without dropout."""
    plain = without_dropout(config)
    steps = args.checked
    if plain == config:
        checked = measured = measure(system, config, args, steps, steps, args.rounds)
    else:
        checked = measure(system, plain, args, steps, steps, 0)
        measured = measure(system, config, args, steps, 0, args.rounds)
    losses = [(turn.ours.number, turn.theirs.number) for turn in checked.rounds[:steps]]
    difference = max(abs(ours - theirs) / abs(theirs) for ours, theirs in losses)
    return {'batch': config['batch_size'], **summary(measured), 'difference of losses': difference}


def evaluate(system: System, config: dict[str, Any], args: argparse.Namespace) -> Row:
    """Compares evaluations."""
    measured = measure(system, config, args, 0, 0, args.rounds)
    difference = max(abs(turn.ours.number - turn.theirs.number) for turn in measured.rounds)
    return {
        **summary(measured),
        'jitm s, first': measured.rounds[0].ours.seconds,
        'difference of rsum': difference,
    }


def positive(text: str) -> int:
    """Returns a number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{number} is less than 1')
    return number


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, help='all if not given')
    parser.add_argument('--evaluate', action='store_true', help='compare evaluations instead of training steps')
    parser.add_argument('--rounds', type=positive, default=5, help='timed steps or evaluations')
    parser.add_argument('--checked', type=positive, default=10, help='steps whose losses are compared')
    parser.add_argument('--torch', choices=(EAGER, COMPILED, FASTER), default=FASTER, help='the mode of PyTorch')
    parser.add_argument('--batch_size', type=int, help='128 if not given; 32 for BERT and CLIP, 4 for UNITER')
    parser.add_argument('--images', type=int, default=1000, help='images that are trained on or evaluated')
    parser.add_argument('--features', type=int, default=2048, help='numbers of the random features of a region')
    parser.add_argument('--embed_dim', type=int, help='of the joint space; the published one if not given')
    parser.add_argument('--cores', type=int, default=2, help='of both sides')
    parser.add_argument('--data_root', type=Path, default=Path('data/f8k_precomp'), help='a *_precomp folder')
    parser.add_argument('--photos_root', type=Path, default=Path('data/f8k_photos'), help='the photos of CLIP')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each system."""
    compare, systems = (evaluate, EVALUATED) if args.evaluate else (train, [*SYSTEMS])
    if unknown := [name for name in args.systems or () if name not in systems]:
        raise UserError(f'{unknown[0]} would read 5 million pairs: leave it out of --systems, or leave out --evaluate')
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), args.data_root, args.features, args.images)
        for name in args.systems or systems:
            config = make_config(SYSTEMS[name], args, Path(folder))
            yield {'system': name, **compare(SYSTEMS[name], config, args)}
