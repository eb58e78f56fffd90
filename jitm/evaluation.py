"""Evaluation: encode every image and text once, score in chunks of fixed shape, rank.

Runs are read from their directories alone: config and vocabulary travel in the checkpoint.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from jitm import config as config_lib
from jitm import metrics as metrics_lib
from jitm.data.pipeline import Tokens, bucket, check_lengths, pad_texts, take_images, tokenize_split
from jitm.data.splits import Split
from jitm.data.text import Vocabulary
from jitm.data.vocabularies import restore_vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.matcher import Encoding, Matcher
from jitm.training.checkpoint import Checkpoints

LENGTH_MULTIPLE = 8


@functools.partial(jax.jit, static_argnums=0)
def _encode_image(model, variables, images):
    return model.apply(variables, images, method='encode_image')


@functools.partial(jax.jit, static_argnums=0)
def _encode_text(model, variables, texts):
    return model.apply(variables, texts, method='encode_text')


@functools.partial(jax.jit, static_argnums=0)
def _similarity(model, variables, images, texts):
    return model.apply(variables, images, texts, method='similarity')


def _chunks(index: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Cuts an index into pieces of one size, the last filled up with its first entry; yields how many count."""
    for start in range(0, len(index), size):
        piece = index[start : start + size]
        yield np.pad(piece, (0, size - len(piece)), constant_values=index[0]), len(piece)


def _concatenate(parts: Sequence[Encoding], order: np.ndarray) -> Encoding:
    """Stacks encodings on axis 0, longer ones deciding the other axes (the rest is 0), then undoes the order."""

    def stack(*leaves):
        shape = np.max([leaf.shape[1:] for leaf in leaves], axis=0, initial=0)
        pads = ([(0, 0), *((0, int(n - m)) for n, m in zip(shape, x.shape[1:], strict=True))] for x in leaves)
        stacked = np.concatenate([np.pad(x, pad) for x, pad in zip(leaves, pads, strict=True)])
        result = np.empty_like(stacked)
        result[order] = stacked
        return result

    return jax.tree.map(stack, *parts)


def encode_images(model: Matcher, variables: chex.ArrayTree, split: Split, chunk: int) -> Encoding:
    """Encodes every image of a split once: numpy leaves [I, ...]."""
    order = np.arange(split.num_images)
    parts = []
    for index, count in _chunks(order, chunk):
        encoded = jax.device_get(_encode_image(model, variables, take_images(split, index)))
        parts.append(jax.tree.map(lambda x, count=count: x[:count], encoded))
    return _concatenate(parts, order)


def encode_texts(model: Matcher, variables: chex.ArrayTree, tokens: Tokens, chunk: int) -> Encoding:
    """Encodes every text once, short ones together: numpy leaves [T, ...]."""
    order = np.argsort(tokens.lengths, kind='stable')
    parts = []
    for index, count in _chunks(order, chunk):
        length = bucket(tokens.lengths[index].max(), LENGTH_MULTIPLE, model.text_format.max_length)
        texts = pad_texts(tokens, index, length)
        encoded = jax.device_get(_encode_text(model, variables, texts))
        parts.append(jax.tree.map(lambda x, count=count: x[:count], encoded))
    return _concatenate(parts, order)


def similarity_matrix(
    model: Matcher, variables: chex.ArrayTree, split: Split, tokens: Tokens, *, image_chunk: int, text_chunk: int
) -> np.ndarray:
    """Scores every image of a split with every text.

    Args:
      model: any matcher.
      variables: its parameters and statistics.
      split: images.
      tokens: the split's texts.
      image_chunk: images encoded and scored at a time.
      text_chunk: texts encoded and scored at a time.

    Returns:
      float32 [I, T].
    """
    variables = jax.device_put(variables)
    images = encode_images(model, variables, split, image_chunk)
    texts = encode_texts(model, variables, tokens, text_chunk)
    sims = np.empty((split.num_images, split.num_texts), np.float32)
    for rows, num_rows in _chunks(np.arange(split.num_images), image_chunk):
        block = jax.tree.map(lambda x, rows=rows: x[rows], images)
        for columns, num_columns in _chunks(np.arange(split.num_texts), text_chunk):
            scores = _similarity(model, variables, block, jax.tree.map(lambda x, c=columns: x[c], texts))
            sims[rows[0] : rows[0] + num_rows, columns[0] : columns[0] + num_columns] = np.asarray(scores)[
                :num_rows, :num_columns
            ]
    return sims


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained matcher, read from its run directory.

    Attributes:
      workdir: where it was read from.
      step: of the checkpoint.
      model: the matcher.
      variables: its parameters and statistics.
      vocabulary: as trained.
      config: as trained, a nested dict.
      feature_size: of the regions it was trained on.
    """

    workdir: Path
    step: int
    model: Matcher
    variables: chex.ArrayTree
    vocabulary: Vocabulary | WordPiece
    config: Mapping[str, Any]
    feature_size: int


def load_run(workdir: str | Path, step: int | None = None) -> Run:
    """Reads a run's evaluated member.

    Args:
      workdir: the run directory.
      step: of the checkpoint; None for the best by validation.

    Raises:
      UserError: if there is no such run or checkpoint, or it is damaged.
    """
    workdir = Path(workdir)
    if not (workdir / 'checkpoints').is_dir():
        raise UserError(f'{workdir} is not a run directory: it has no checkpoints folder')
    with Checkpoints(workdir) as checkpoints:
        step = checkpoints.best_step() if step is None else step
        if step is None:
            raise UserError(
                f'{workdir} has no validated checkpoint yet; name one with --step, of {checkpoints.steps()}'
            )
        state, run = checkpoints.read(step)
    config, vocabulary = run['config'], restore_vocabulary(run['vocabulary'])
    if vocabulary.hash != run['vocabulary_hash']:
        raise UserError(f'the vocabulary in {workdir} does not have the hash it was saved with')
    member = state['members'][config['evaluation']['member']]
    variables = {'params': member['params'], 'batch_stats': member['batch_stats']}
    model = config_lib.make_model(config['model'], len(vocabulary))
    return Run(workdir, step, model, variables, vocabulary, config, run['data']['regions'][2])


def evaluate_runs(
    runs: Sequence[Run],
    split_name: str,
    folds: int,
    data_root: str | None = None,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> tuple[dict[str, Any], np.ndarray]:
    """Evaluates one run, or several as the mean of their similarity matrices.

    Args:
      runs: trained on the same data set.
      split_name: such as 'dev'.
      folds: consecutive parts the images are split into, their metrics being averaged.
      data_root: where the data lie now, if not where the run was trained.
      check: gets the protocol before anything is encoded, and may raise.

    Returns:
      A report of `metrics` and `protocol`, and the similarities float32 [I, T].

    Raises:
      UserError: if the data cannot be read, the runs differ in their data, or the folds do not fit.
    """
    data = dict(runs[0].config['data'])
    for run in runs[1:]:
        if config_lib.differences({'data': data}, {'data': run.config['data']}):
            raise UserError(f'{run.workdir} was trained on other data than {runs[0].workdir}; ensembles need the same')
    if data_root is not None and 'root' not in data:
        raise UserError(f"--data_root does not apply: the runs' data source '{data['source']}' reads no folder")
    if data_root is not None:
        data['root'] = data_root
    split = config_lib.load_split(data, split_name)
    if split.num_images % folds:
        raise UserError(f'{split.name} has {split.num_images} images, which --folds {folds} does not divide')
    protocol = {
        'data': split.name,
        'dataset': split.dataset,
        'split': split_name,
        'images': split.num_images // folds,
        'texts': split.num_texts // folds,
        'folds': folds,
        'ties': 'count against the query',
        'runs': [{'workdir': str(run.workdir), 'step': run.step} for run in runs],
        'vocabulary_hash': [run.vocabulary.hash for run in runs],
    }
    if check is not None:
        check(protocol)
    sims = np.zeros((split.num_images, split.num_texts), np.float32)
    for run in runs:
        if split.regions.shape[2] != run.feature_size:
            raise UserError(
                f'{split.name} has {split.regions.shape[2]} features per region, but {run.workdir} was trained on '
                f'{run.feature_size}; evaluate on features of the same extractor'
            )
        tokens = tokenize_split(split.captions, run.vocabulary)
        check_lengths(split, tokens, run.model.text_format)
        chunks = {key: run.config['run'][key] for key in ('image_chunk', 'text_chunk')}
        sims += similarity_matrix(run.model, run.variables, split, tokens, **chunks)
    sims /= len(runs)
    if not np.isfinite(sims).all():
        raise UserError(
            f'{np.sum(~np.isfinite(sims))} similarities on {split.name} are not finite: the model is broken'
        )
    return {'metrics': metrics_lib.retrieval_metrics(sims, split.image_of_text, folds), 'protocol': protocol}, sims


def write_report(report: Mapping[str, Any], sims: np.ndarray | None, folder: Path) -> None:
    """Writes `metrics.json` and, if given, `sims.npy` (float32 [I, T]) into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if sims is not None:
        np.save(folder / 'sims.npy', sims)
    (folder / 'metrics.json').write_text(json.dumps(report, indent=2) + '\n')
