"""Takes training steps on some virtual devices and saves losses and gradients: run by test_parallel.py."""

import sys

import jax

out, devices, *processes = sys.argv[1:]
jax.config.update('jax_num_cpu_devices', int(devices))

import warnings  # noqa: E402

import numpy as np  # noqa: E402
import optax  # noqa: E402
from test_matchers import MATCHERS, VOCABULARY, perturb  # noqa: E402

from jitm import parallel  # noqa: E402
from jitm.data.pipeline import Pipeline, Tokens  # noqa: E402
from jitm.data.splits import Split  # noqa: E402
from jitm.losses import ranking, tokens  # noqa: E402
from jitm.training import rankings  # noqa: E402
from jitm.training.members import Member, gradient, init_members  # noqa: E402
from jitm.training.objective import Term  # noqa: E402
from jitm.training.step import TrainState, make_train_step  # noqa: E402


def make_pipeline(batch_size: int) -> Pipeline:
    rng = np.random.default_rng(0)
    image_of_text = np.repeat(np.arange(12), 3).astype(np.int32)
    regions = rng.normal(size=(12, 4, 6)).astype(np.float32)
    lengths = rng.integers(3, 9, len(image_of_text))
    tokens = Tokens(
        rng.integers(1, VOCABULARY, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])
    )
    split = Split('random', regions, rng.integers(1, 5, 12).astype(np.int32), ('',) * 36, image_of_text, ('',) * 12)
    return Pipeline(split, tokens, batch_size, seed=0, length_multiple=4)


def main() -> None:
    warnings.simplefilter('error')
    if processes:
        coordinator, count, index = processes
        parallel.start_processes(coordinator, int(count), int(index))
    pipeline, results = make_pipeline(16), {}
    caption = {'caption': Term(tokens.captioning, 1.0, 0, None, 'sum', 'captioning')}
    for name, model, loss, token_terms in (
        ('vsepp', MATCHERS['vsepp'], ranking.max_of_hinges, {}),
        ('order0', MATCHERS['order0'], ranking.sum_of_hinges, {}),
        # Devices drop out different values.
        ('vsrn', MATCHERS['vsrn_f30k'].clone(caption_dropout=0.0), ranking.max_of_hinges, caption),
    ):
        members = {'target': Member(model, optax.trace(0.0), gradient)}
        term = Term(lambda s, p, n, loss=loss: loss(s, p, n, margin=0.2), 1.0, 0, None, 'sum')
        step = make_train_step(
            members,
            {'ranking': term, **token_terms},
            lambda s, i: rankings.in_batch(s, i, same_image_negatives=False),
            seed=0,
            steps_per_epoch=2,
        )
        step = parallel.data_parallel(step)
        whole = pipeline.batch(0)
        first = init_members(members, 0, whole.images, whole.texts)
        first = {'target': first['target'].replace(params=perturb(first['target'].params))}
        state = parallel.put_state(TrainState(np.int32(0), first))
        batch = pipeline.batch(0, jax.process_index(), jax.process_count())
        state, metrics = step(state, parallel.put_batch(batch))
        target = jax.device_get(state.members['target'])
        # A trace without memory is the gradient.
        for what, tree in (('gradient', target.optimizer.trace), ('statistics', target.batch_stats)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                results[f'{name}/{what}{jax.tree_util.keystr(path)}'] = leaf
        for key, value in jax.device_get(metrics).items():
            results[f'{name}/{key.removeprefix("target/")}'] = np.asarray(value)
        results[f'{name}/step'] = np.asarray(jax.device_get(state.step))
    results['devices'] = np.asarray(jax.device_count())
    if parallel.is_primary():
        np.savez(out, **results)
    parallel.barrier('done')


main()
