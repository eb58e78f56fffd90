"""Takes training steps on virtual devices and saves losses and gradients; test_parallel.py runs it.

The states before the steps are initialized and saved on one device, and read on several. Parameters and inputs are
float64, since devices add in another order, and float32 would hide a small mistake behind rounding.
"""

import dataclasses
import functools
import pickle
import sys
from pathlib import Path

import jax

out, initial, devices, chosen, *processes = sys.argv[1:]
jax.config.update('jax_num_cpu_devices', int(devices))
jax.config.update('jax_enable_x64', bool(processes) or jax.default_backend() != 'tpu')  # which has no float64

import warnings  # noqa: E402

import numpy as np  # noqa: E402
import optax  # noqa: E402

from jitm.data.pairs import cider  # noqa: E402
from jitm.data.pairs.augmentation import Augmentation  # noqa: E402
from jitm.data.pipeline import Pipeline  # noqa: E402
from jitm.data.splits import Split  # noqa: E402
from jitm.data.text.word_level import Tokens, Vocabulary  # noqa: E402
from jitm.devices import job, parallel  # noqa: E402
from jitm.losses import anchored, noisy, ranking, tokens  # noqa: E402
from jitm.models import tiling  # noqa: E402
from jitm.training.gradient_cache import encode_in_chunks  # noqa: E402
from jitm.training.label_estimators import CoTeaching, MovingAverage  # noqa: E402
from jitm.training.members import EMA, Frozen, Gradient, Member, MemberState, init_members  # noqa: E402
from jitm.training.objective import RankingTerm, TokenTerm  # noqa: E402
from jitm.training.source import Memory, together  # noqa: E402
from jitm.training.sources.labels import with_labels  # noqa: E402
from jitm.training.sources.perturbed import sampler  # noqa: E402
from jitm.training.sources.relevance import with_relevance  # noqa: E402
from jitm.training.step import TrainState, train_step  # noqa: E402
from jitm.types import Batch  # noqa: E402
from tests.conftest import UNCHANGED  # noqa: E402
from tests.support.matchers import MATCHERS, VOCABULARY, perturb, random_variables  # noqa: E402
from tests.support.steps import (  # noqa: E402
    candidates_source,
    drawing,
    in_batch_source,
    parts_of_step,
    predictions_source,
    shortlist_source,
)

HINGE = {'margin': 0.2}
TERM = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
MODELS = {
    'shortlist': 'vsepp',
    'boosted': 'rvse_mlp',
    'ncr': 'vsepp',
    'crcl': 'vsepp',
    'perturbed': 'vsepp',
    'queue': 'vsepp',
    'sigmoid': 'clip_vit',
    'sigmoid_in_chunks': 'clip_vit',
}  # other cases are named after their model
CASES = [
    ('vsepp', functools.partial(ranking.max_of_hinges, **HINGE), {}),
    ('vsrn_f30k', functools.partial(ranking.max_of_hinges, **HINGE), {}),
    ('naaf', functools.partial(ranking.max_of_hinges, **HINGE), {}),  # thresholds mined over the images of all devices
    ('shortlist', functools.partial(ranking.mean_of_hinges, **HINGE), {}),  # candidates and extra pairs on all devices
    # Views with other regions and words, and batch normalization over regions padded to the longest of all devices.
    (
        'boosted',
        functools.partial(anchored.relative_max, **HINGE),
        {'drop_regions': 0.4, 'change_words': 0.4, 'num_views': 2},
    ),
    ('ncr', functools.partial(noisy.soft_margin, **HINGE), {}),  # labels from both models' scores of all devices
    ('crcl', functools.partial(noisy.active_complementary, temperature=0.1), {}),
    ('perturbed', functools.partial(ranking.sum_of_hinges, **HINGE), {}),  # captions of the parts of the batch
    ('queue', functools.partial(ranking.softmax_contrastive, temperature=0.1), {}),  # of the pairs of all devices
    ('clip_resnet', ranking.softmax_contrastive, {}),  # pixels, batch normalization over them, a learned temperature
    *((name, ranking.sigmoid_contrastive, {}) for name in ('sigmoid', 'sigmoid_in_chunks')),
]
ENCODED = '_encoded_in_chunks'  # suffix of a case whose models encode a few rows at a time
CHUNK = 3
CASES += [(name + ENCODED, *case) for name, *case in CASES if name in ('ncr', 'perturbed')]


LABELS = {
    'ncr': CoTeaching(warm_up_epochs=0, noisy_epoch=0),
    'crcl': MovingAverage(warm_up_epochs=0),
}


def fill(memory: Memory) -> Memory:
    """The initial memory with labels of the 36 pairs, some of which are not clean, and a queue of random vectors.

    Some vectors of the queue are of no pair.
    """
    memory = jax.device_get(memory)
    if 'labels' in memory:
        rng, stored = np.random.default_rng(1), memory['labels']
        memory['labels'] = {
            name: {key: (rng.random(36) < 0.7) * x for key, x in values.items()} for name, values in stored.items()
        }
    if 'queue' in memory:
        rng, empty = np.random.default_rng(2), memory['queue']
        rows = {key: rng.normal(size=empty[key].shape).astype(np.float32) / 4 for key in ('images', 'texts')}
        image_index = rng.integers(-1, 12, len(empty['image_index'])).astype(np.int32)
        rows |= {'image_index': image_index, 'text_index': np.where(image_index < 0, -1, 3 * image_index)}
        memory['queue'] = rows
    return memory


def make_pipeline(
    batch_size: int, augmentation: Augmentation, reads: tuple[str, ...]
) -> tuple[Pipeline, cider.Relevance]:
    rng = np.random.default_rng(0)
    image_of_text = np.repeat(np.arange(12), 3).astype(np.int32)
    regions = rng.normal(size=(12, 4, 6)).astype(np.float32)
    lengths = rng.integers(3, 9, len(image_of_text))
    tokens = Tokens(
        rng.integers(1, VOCABULARY, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])
    )
    split = Split('random', regions, rng.integers(1, 5, 12).astype(np.int32), ('',) * 36, image_of_text, ('',) * 12)
    split = dataclasses.replace(split, pixels=rng.integers(0, 256, (12, 32, 32, 3), np.uint8))
    vocabulary = Vocabulary(tuple(f'w{n}' for n in range(VOCABULARY - 1))).with_mask()
    pipeline = Pipeline(split, tokens, vocabulary, batch_size, 0, 4, augmentation, reads=reads)
    phi = rng.normal(size=(12, 36)).astype(np.float32)
    return pipeline, cider.Relevance(lambda i, t: phi[np.ix_(i, t)])


def random_state(n: int, member: Member, batch: Batch) -> MemberState:
    """A state without the compilation of an initialization; those of members differ."""
    variables = {'batch_stats': {}} | random_variables(member.model, batch.images, batch.texts)
    params = jax.tree.map(lambda x: (1 + n / 4) * x, variables['params'])
    return MemberState(params, variables['batch_stats'], member.optimizer.init(params) if member.trains else ())


def double(tree):
    """Casts the float32 arrays of a tree to float64."""
    return jax.tree.map(lambda x: np.float64(x) if x.dtype == np.float32 else x, tree)


def main() -> None:
    warnings.simplefilter('error')
    tiling.SPARSE = 1.0  # batches are so small that gradients would be dense
    if processes:
        coordinator, count, index = processes
        job.join(coordinator, int(count), int(index))
    results = {}
    states_of = {} if int(devices) == 1 else pickle.loads(Path(initial).read_bytes())
    for case, loss, changes in CASES:
        if chosen != 'all' and case not in chosen.split(','):
            continue
        name = case.removesuffix(ENCODED)
        model, terms = MATCHERS[MODELS.get(name, name)], {'ranking': RankingTerm(loss=loss, **TERM)}
        pipeline, relevance = make_pipeline(16, Augmentation(**UNCHANGED | changes), model.reads)
        source = with_relevance(in_batch_source('ignored'), lambda split, relevance=relevance: relevance)
        if name == 'vsrn_f30k':
            model = model.clone(caption_dropout=0.0)  # devices drop out different values
            terms['caption'] = TokenTerm(loss=tokens.captioning, predictions='captioning', **TERM)
            source = together(predictions_source(caption=terms['caption']), source)
        if name.startswith('sigmoid'):  # of one direction, as published; its networks compute in float32 in any case
            model = model.clone(initial_bias=-3.0)
            terms = {'ranking': RankingTerm(loss=loss, rankings=('i2t',), **TERM | {'reduction': 'mean'})}
        if name == 'sigmoid_in_chunks':
            chunks = {'source': 'in_chunks', 'same_image': 'ignored', 'queries': 3}
            source = candidates_source(chunks, terms)
        if name == 'boosted':
            model = model.clone(image=model.image.clone(norm_padding=True))
        members = {'target': Member(rule=Gradient(), model=model, optimizer=optax.trace(0.0))}
        if name == 'boosted':
            target = dataclasses.replace(members['target'], learn_from=('anchor',))
            members = {'anchor': Member(rule=Frozen(), model=model), 'target': target}
        if name == 'ncr':
            members = dict.fromkeys(('other', 'target'), members['target'])
        if name in LABELS:
            source = with_labels(source, LABELS[name])
        if name == 'shortlist':
            source = shortlist_source(8, 5)
        if name == 'perturbed':
            source = candidates_source({'source': name, 'same_image': 'ignored', 'perturbations': ('swap',)})
            kinds = [lambda text: [f'w{text % 7} w{text % 5} w4'] * (text % 3)]
            source = source._replace(samplers=lambda pipeline, kinds=kinds: {'perturbed': sampler(pipeline, kinds, '')})
        if name == 'queue':
            members |= {'average': Member(rule=EMA(of='target', momentum=0.5), model=model)}
            keep = {'source': name, 'same_image': 'ignored', 'encoder': 'average', 'length': 24}
            source = candidates_source(keep)
        pipeline = drawing(pipeline, source)
        parts = parts_of_step(members, terms, source, seed=0, steps_per_epoch=2, epochs=2)
        step = encode_in_chunks(functools.partial(train_step, **parts), None if case == name else CHUNK)
        step = parallel.data_parallel(step, 'highest')
        if name not in states_of:
            whole = pipeline.batch(0)
            states = {key: random_state(n, member, whole) for n, (key, member) in enumerate(members.items())}
            if name == 'naaf':  # whose thresholds stay at 0 for such parameters
                states = jax.jit(functools.partial(init_members, members, 0))(whole.images, whole.texts)
                states = {key: member.replace(params=perturb(member.params)) for key, member in states.items()}
            states_of[name] = jax.device_get(states)
        models = {key: (model, member.variables) for key, member in states_of[name].items()}
        memory = fill(source.init(models, sorted(parts['terms']), pipeline.batch(0), 36))
        state = parallel.put_state(TrainState(np.int32(0), double(states_of[name]), double(memory)))
        batch = pipeline.batch(0, jax.process_index(), jax.process_count())
        state, metrics = step(state, parallel.put_batch(double(batch)))
        target = jax.device_get(state.members['target'])
        # A trace with decay 0 is the gradient.
        for what, tree in (
            ('gradient', target.optimizer.trace),
            ('statistics', target.batch_stats),
            *jax.device_get(state.memory).items(),
        ):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                results[f'{case}/{what}{jax.tree_util.keystr(path)}'] = leaf
        for key, value in jax.device_get(metrics).items():
            results[f'{case}/{key.removeprefix("target/")}'] = np.asarray(value)
        results[f'{case}/step'] = np.asarray(jax.device_get(state.step))
    if int(devices) == 1:
        Path(initial).write_bytes(pickle.dumps(states_of))
    results['devices'] = np.asarray(jax.device_count())
    results['float64'] = np.asarray(jax.config.jax_enable_x64)
    if parallel.is_primary():
        np.savez(out, **results)
    parallel.barrier('done')


main()
