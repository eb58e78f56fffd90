"""A trained run, loaded from its directory alone: config and vocabulary travel in the checkpoint."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chex

from jitm.config import build as config_lib
from jitm.config import section
from jitm.data import load
from jitm.data.load import TRAIN_KEYS, load_split
from jitm.data.splits import Split, check_images, check_lengths
from jitm.data.text.token_vectors import add_vectors, check_encoders
from jitm.data.text.vocabularies import Tokenizer, describe_vocabulary, restore_vocabulary, tokenize_split
from jitm.data.text.word_level import Tokens
from jitm.errors import UserError, did_you_mean
from jitm.files import check_local, expand
from jitm.layers.lora import merge
from jitm.models import make
from jitm.models.make import make_model, member_model
from jitm.models.matcher import Matcher
from jitm.runs import hub, own_code
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.checkpoint_files import FOLDER, checkpoint_digest


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained model of a run.

    Attributes:
      workdir: The run directory.
      step: The step of the checkpoint.
      member: Name of the model in the config's `members`.
      model: The matcher.
      variables: Its parameters and batch statistics.
      vocabulary: The vocabulary it was trained with.
      config: The training config, a nested dict.
      feature_size: F, features per region in the training data; None without features.
      data_hash: Hash of the training split, see `Split.identity`.
      image_size: H and W of the training pixels; None for models that do not read pixels.
      data_name: The name of the training data of published weights; '' if unknown, and for runs trained by jitm.
      encoded_by: The network that computed the training features, see `Split`; None if not known.
      digest: A digest of the files of the checkpoint, or of the exported weights; '' if they are not known.
    """

    workdir: Path
    step: int
    member: str
    model: Matcher
    variables: chex.ArrayTree
    vocabulary: Tokenizer
    config: Mapping[str, Any]
    feature_size: int | None
    data_hash: str
    image_size: tuple[int, int] | None = None
    data_name: str = ''
    encoded_by: Mapping[str, Any] | None = None
    digest: str = ''

    def __repr__(self) -> str:
        return f'<{type(self.model).__name__} {self.member} of {self.workdir}, step {self.step}>'

    @property
    def feature_scale(self) -> float:
        """What the model reads is features times this number."""
        return self.config['data'].get('scale', 1.0)

    @property
    def reranker(self) -> 'Run':
        """The same run with the model that orders a shortlist."""
        return dataclasses.replace(self, model=self.model.reranker)


def load_run(workdir: str | Path, step: int | None = None, member: str | None = None) -> Run:
    """Loads one model of a run.

    Args:
      workdir: The run directory, or a folder of `export_run`.
      step: The step of the checkpoint; None for the best one on the validation split.
      member: Name of the model; None for the validated one.

    Returns:
      The run.

    Raises:
      UserError: If the run, checkpoint or model does not exist, or is damaged; or if the model is defined outside of
        jitm in a module that was not imported before.
    """
    check_local(str(workdir), 'the run directory')
    workdir = Path(expand(str(workdir)))
    step, member, variables, run = _read(workdir, step, member)
    exported = _is_exported(workdir)
    stored = config_lib.check_saved(run['config'], workdir)
    config = config_lib.to_json(section.complete(stored, load.SECTIONS | make.SECTIONS, imports=False))
    vocabulary = restore_vocabulary(run['vocabulary'])
    if vocabulary.hash != run['vocabulary_hash']:
        raise UserError(f'the vocabulary in {workdir} does not have the hash it was saved with')
    try:
        data = run['data']
        loaded = Run(
            workdir=workdir,
            step=step,
            member=member,
            model=make_model(member_model(config, member), len(vocabulary), own=not exported),
            variables={**variables, 'params': merge(variables['params'])},
            vocabulary=vocabulary,
            config=config,
            feature_size=data['regions'][2] if 'regions' in data else None,
            data_hash=data['hash'],
            image_size=tuple(data['pixels'][1:3]) if 'pixels' in data else None,
            data_name=data.get('name', ''),
            encoded_by=run.get('encoded_by'),
            digest=run['sha256'][hub.WEIGHTS] if exported else checkpoint_digest(workdir, step),
        )
    except (AttributeError, IndexError, KeyError, TypeError) as error:  # the description in a folder has no checksum
        raise UserError(f'{workdir} has a damaged config ({error!r}); restore or export it again') from error
    for file in own_code.changed_files(workdir):
        logging.warning('%s changed since %s was trained with it', file, workdir)
    return loaded


Found = tuple[int, str, dict[str, chex.ArrayTree], dict[str, Any]]  # step, member, what is stored, the described run


def _is_exported(workdir: Path) -> bool:
    files = (workdir / name for name in (hub.WEIGHTS, hub.CONFIG))
    return all(path.is_file() for path in files) and not (workdir / FOLDER).is_dir()


def _read(workdir: Path, step: int | None, member: str | None) -> Found:
    return (_read_folder if _is_exported(workdir) else _read_checkpoint)(workdir, step, member)


def _read_checkpoint(workdir: Path, step: int | None, member: str | None) -> Found:
    if not (workdir / FOLDER).is_dir():
        raise UserError(f'{workdir} is not a run directory: it has no checkpoints folder')
    with Checkpoints(workdir) as checkpoints:
        step = checkpoints.best_step() if step is None else step
        if step is None:
            raise UserError(
                f'{workdir} has no validated checkpoint yet; name one with --step, of {checkpoints.steps()}'
            )
        state, run = checkpoints.read(step)
    member = run['config']['evaluation']['member'] if member is None else member
    if member not in state['members']:
        raise UserError(f"{workdir} has no member '{member}'{did_you_mean(member, state['members'])}")
    state = state['members'][member]
    return step, member, {part: state[part] for part in ('params', 'batch_stats')}, run


def _read_folder(folder: Path, step: int | None, member: str | None) -> Found:
    variables, run = hub.read_folder(folder)
    for name, asked in (('step', step), ('member', member)):
        if asked is not None and asked != run[name]:
            raise UserError(f'{folder} has the {name} {run[name]} only, not {asked}')
    return run['step'], run['member'], variables, run


def describe_run(run: Run) -> dict[str, Any]:
    """Returns the description of a run's model, for its checkpoints: config, vocabulary, and the inputs it expects."""
    config = {**run.config, 'evaluation': {**run.config['evaluation'], 'member': run.member}}
    data = {'hash': run.data_hash} | ({'name': run.data_name} if run.data_name else {})
    if run.feature_size is not None:
        data['regions'] = [0, 0, run.feature_size]
    if run.image_size is not None:
        data['pixels'] = [0, *run.image_size, 3]
    return {
        'config': config,
        'vocabulary': describe_vocabulary(run.vocabulary),
        'vocabulary_hash': run.vocabulary.hash,
        'data': data,
        'encoded_by': run.encoded_by,
    }


def export_run(run: Run, folder: Path) -> None:
    """Writes a model as a folder that `load_run` reads, in the layout of the Hugging Face Hub.

    Args:
      run: The model.
      folder: The folder, which is created.

    Raises:
      UserError: If it cannot be written, or the model is defined outside of jitm.
    """
    user_names = section.own_names({'model': member_model(run.config, run.member)}, make.SECTIONS, imports=False)
    if user_names:
        problem = 'which is not in jitm, and an exported folder is read by jitm alone'
        model = next(iter(user_names.values()))
        raise UserError(f"{run.workdir} has the model '{model}', {problem}: publish the run directory with its module")
    described = describe_run(run) | {'step': run.step, 'member': run.member}
    name = member_model(run.config, run.member)['name']
    card = hub.write_card(describe_inputs(run), name, hub.last_report(run.workdir, run.step, run.member, run.digest))
    hub.write_folder(folder, run.variables, described, card)


def read_split(
    runs: Sequence[Run],
    split_name: str,
    data_root: str | None = None,
    noisy: bool = False,
    trained_alike: bool = True,
) -> Split:
    """Reads a split of the data set that all runs were trained on.

    Args:
      runs: Runs trained on the same data set.
      split_name: The name of the split, such as 'dev'.
      data_root: The data folder, if it has moved since training.
      noisy: Whether captions of the training split are moved as in training.
      trained_alike: Whether the runs must share their part of the training data and its moved captions.

    Returns:
      The split.

    Raises:
      UserError: If the data cannot be read, or the runs were trained on different data.
    """
    ignored = {'token_vectors', *(() if trained_alike else TRAIN_KEYS)}  # one run may read them and another one not
    for run in runs[1:]:
        settings_differ = config_lib.differences({'data': runs[0].config['data']}, {'data': run.config['data']})
        settings_differ = [
            line for line in settings_differ if line.removeprefix('data.').partition(':')[0] not in ignored
        ]
        # The other keys of two sources have little in common.
        settings_differ = [key for key in settings_differ if key.startswith('data.source:')] or settings_differ
        if settings_differ or (trained_alike and run.data_hash != runs[0].data_hash):
            differ = f' ({", ".join(settings_differ)})' if settings_differ else ''
            raise UserError(
                f'{run.workdir} was trained on other data than {runs[0].workdir}{differ}; '
                'runs that are evaluated together need the same'
            )
    data = max((run.config['data'] for run in runs), key=lambda data: data.get('token_vectors', False))
    return load_split(data, split_name, data_root and expand(str(data_root)), noisy)


def check_split(split: Split, run: Run) -> None:
    """Raises a UserError if the model of a run cannot read the images of a split."""
    check_images(split, run.model.reads)
    if 'regions' in run.model.reads and split.feature_size != run.feature_size:
        raise UserError(
            f'{split.name} has {split.feature_size} features per region, but {run.workdir} was trained on '
            f'{run.feature_size}; evaluate on features of the same extractor'
        )


def read_tokens(run: Run, split: Split) -> Tokens:
    """Tokenizes the captions of a split with the vocabulary of a run.

    Args:
      run: A trained model.
      split: Images and captions.

    Returns:
      The token ids of the T captions.

    Raises:
      UserError: If the model cannot read these features, boxes or captions.
    """
    check_split(split, run)
    tokens = tokenize_split(split.captions, run.vocabulary, split.tags)
    check_lengths(split, tokens, run.model.text_format)
    if not run.model.text_format.vectors:
        return tokens
    check_encoders(run.encoded_by, split.encoded_by, split.name, run.workdir)
    return add_vectors(tokens, split.token_vectors, split.name)


def describe_inputs(run: Run) -> dict[str, Any]:
    """Returns the inputs that a run expects in evaluation, for JSON reports.

    Returns:
      `reads`, the fields of `Images`; `feature_size` and `image_size`, None where not read; `vocabulary`, its number of
      words, and `vocabulary_hash`; `trained_on`, the folder or the source of the training data, and `data_hash`, '' for
      converted weights, whose training data are known by name at most.
    """
    data = run.config['data']
    return {
        'reads': list(run.model.reads),
        'feature_size': run.feature_size,
        'image_size': None if run.image_size is None else list(run.image_size),
        'vocabulary': len(run.vocabulary),
        'vocabulary_hash': run.vocabulary.hash,
        'trained_on': data.get('root', data['source']) if run.data_hash else run.data_name or None,
        'data_hash': run.data_hash,
    }


def describe_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns workdir, step, member and digest of each run, for JSON reports."""
    return [{'workdir': str(run.workdir), 'step': run.step, 'member': run.member, 'digest': run.digest} for run in runs]
