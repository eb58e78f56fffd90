"""Two training steps of a setting on tiny data, and scores of all models, reduced to a few numbers.

`python -m tests.golden.steps` writes `steps.json` and `scores.json` anew, which the tests compare with. With names of
settings it adds only their steps to `steps.json`.
"""

import dataclasses
import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tests.conftest  # noqa: F401  sets the compiler flags that `steps.json` was made with
from jitm.commands.cli import read_config
from jitm.data import scenes
from jitm.data.pairs import mined_lists
from jitm.data.splits import Split
from jitm.data.text.token_vectors import TokenVectors
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.devices import parallel
from jitm.training.setup import set_up

GOLDEN, SCORES = (json.loads(Path(__file__).with_name(name).read_text()) for name in ('steps.json', 'scores.json'))

DATA = {'seed': 0, 'train_images': 8, 'dev_images': 4, 'test_images': 4}
SIZES = {
    'embed_dim': 16,
    'word_dim': 8,
    'alignment_dim': 8,
    'blocks': 4,
    'caption_dim': 8,
    'size': 'tiny',
    'minimum_words': 2,
    'dtype': 'float32',
    # Models of pixels, and of the tokens of their encoders.
    'hidden_dim': 16,
    'num_layers': 1,
    'num_heads': 2,
    'mlp_dim': 16,
    'token_dim': 8,
}


def load_with_vectors(split: str, seed: int, train_images: int, dev_images: int, test_images: int) -> Split:
    """Makes a split of scenes, see `scenes.load`, with random vectors of the tokens of its captions."""
    sizes = {'train_images': train_images, 'dev_images': dev_images, 'test_images': test_images}
    made = scenes.load(split, seed=seed, **sizes)
    vocabulary = Vocabulary.build(made.captions, 1)
    lengths = tokenize_split(made.captions, vocabulary).lengths
    values = np.random.default_rng(0).normal(size=(lengths.sum(), 8)).astype(np.float32)
    return dataclasses.replace(made, token_vectors=TokenVectors(values, lengths, vocabulary))


def load(setting: str) -> dict[str, Any]:
    """Returns the config of a setting such as configs/vse.py:fc,max,f30k."""
    return json.loads(json.dumps(read_config(setting)))


def write_files(folder: Path) -> None:
    """Writes a vocabulary of word pieces, and as negatives of each image those of the next four."""
    split = scenes.load('train', **DATA)
    words = sorted({word.strip('.,') for caption in split.captions for word in caption.lower().split()})
    (folder / 'vocab.txt').write_text('\n'.join(('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words)) + '\n')
    images = split.num_images
    owners = split.image_of_text
    i2t = [[5 * ((image + n) % images) + n for n in range(1, 5)] for image in range(images)]
    t2i = [[(owner + n) % images for n in range(1, 5)] for owner in owners]
    lists = mined_lists.Candidates(np.array(i2t, np.int32), np.array(t2i, np.int32))
    scores = {'i2t': np.zeros(lists.i2t.shape, np.float32), 't2i': np.zeros(lists.t2i.shape, np.float32)}
    mined_lists.save(lists, scores, {'data': split.identity}, 'train', folder / 'candidates')


def _shrink(section: dict[str, Any]) -> dict[str, Any]:
    return {key: _shrink(value) if isinstance(value, dict) else SIZES.get(key, value) for key, value in section.items()}


def tiny(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns a setting with tiny data and sizes; of two stages the second, and no warm-up of labels."""
    source = 'tests.golden.steps.load_with_vectors' if config['data'].get('token_vectors') else 'scenes.load'
    config |= {'data': {'source': source, **DATA}, 'batch_size': 4, 'epochs': 1, 'length_multiple': 32}
    config['model'] = _shrink(config['model'])
    for member in config['members'].values():
        if 'model' in member:
            member['model'] = _shrink(member['model'])
    config['initialize'] = dict.fromkeys(config['initialize'], '')
    config['vocabulary'] = {'path': str(folder / 'vocab.txt') if config['vocabulary']['path'] else '', 'min_count': 1}
    config['evaluation']['every_steps'] = None
    if config['labels']['source']:
        config['labels'] |= {'warm_up_epochs': 0} | dict.fromkeys(config['labels'].keys() & {'noisy_epoch'}, 0)
        config['terms'].pop('warm_up', None)
        config['terms']['ranking']['start_epoch'] = 0
    if config['stages']:
        config['stages'] = {}
        config['offline'] |= {'path': str(folder / 'candidates'), 'top_h_texts': 4, 'top_h_images': 4}
    if config['candidates']['source'] == 'shortlist':
        config['candidates'] |= {'num_extra': 4, 'num_hard': 3}
    if config['masking']['num_views']:
        config['masking']['num_views'] = 2
    if config['synthesis']['generator']:
        config['synthesis'] |= {'num_samples': 2, 'num_hard': 3}
    return config


def make_config(name: str, folder: Path) -> dict[str, Any]:
    """Makes the config of a tiny setting.

    Args:
      name: The setting, and changes of the tiny config: `configs/noisy.py:mean,rcl,f8k data.noise_rate=0.4`.
      folder: The folder with the files of `write_files`.
    """
    setting, *changes = name.split(' ')
    config = tiny(load(setting), folder)
    for change in changes:
        path, _, value = change.partition('=')
        *sections, key = path.split('.')
        functools.reduce(dict.__getitem__, sections, config)[key] = json.loads(value)
    return config


def reduce(tree: Any) -> float:
    """Returns a number that changes if any leaf does."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return float(sum(np.cos(np.arange(len(leaf))) @ leaf + np.abs(leaf).sum() for leaf in leaves))


def two_steps(name: str, folder: Path) -> dict[str, Any]:
    """Trains two steps.

    Args:
      name: The name of the tiny setting, see `make_config`.
      folder: The folder with the files of `write_files`.

    Returns:
      `steps`, loss and gradient norm of each model in each step; `after`, for each model the reduced parameters and
      batch statistics.
    """
    setup = set_up(make_config(name, folder), resuming=True)
    state = parallel.put_state(setup.random_state())
    steps = []
    for n in range(2):
        state, metrics = setup.train_step(state, parallel.put_batch(setup.make_batch(n)))
        metrics = jax.device_get(metrics)
        assert metrics['finite']
        kept = {key: value for key, value in metrics.items() if key.split('/', 1)[-1] in ('loss', 'gradient_norm')}
        steps.append({key: float(value) for key, value in kept.items()})
    members = jax.device_get(state).members
    return {'steps': steps, 'after': {name: [reduce(m.params), reduce(m.batch_stats)] for name, m in members.items()}}


def compare(name: str, folder: Path) -> None:
    """Raises an AssertionError unless two steps of a setting are those of `steps.json`."""
    got = two_steps(name, folder)
    want = GOLDEN[name]
    for new, old in zip(got['steps'], want['steps'], strict=True):
        assert new.keys() == old.keys()
        np.testing.assert_allclose([new[key] for key in old], list(old.values()), rtol=1e-4)
    assert got['after'].keys() == want['after'].keys()
    for member, numbers in want['after'].items():
        np.testing.assert_allclose(got['after'][member], numbers, rtol=1e-5, atol=1e-5)


def write(name: str, rows: dict[str, Any]) -> None:
    """Writes a file of this folder, one row on each line."""
    lines = ',\n'.join(f'{json.dumps(key)}: {json.dumps(row)}' for key, row in rows.items())
    Path(__file__).with_name(name).write_text(f'{{\n{lines}\n}}\n')


if __name__ == '__main__':
    from tests.support.matchers import MATCHERS, outputs

    added = sys.argv[1:]
    if not added:
        write('scores.json', {name: reduce(outputs(name)['scores']) for name in MATCHERS})
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        made = {name: two_steps(name, Path(folder)) for name in added or GOLDEN}
    write('steps.json', GOLDEN | made)
