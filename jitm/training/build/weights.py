"""What members begin with instead of what is drawn: published weights, or those of another run."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from jitm import config as config_lib
from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.importers.pretrained import Replacements, load_pretrained
from jitm.runs.run import load_run
from jitm.training.members import Member, MemberState


def load_trained(
    name: str, member: Member, state: MemberState, config: Mapping[str, Any], vocabulary: Vocabulary | WordPiece
) -> dict[str, Replacements]:
    """Reads the parameters and statistics that a member begins with, of the evaluated member of its `init_from`.

    Heads that the run does not have begin as the model's `begins_as` says, or as they are drawn.

    Args:
      name: of the member.
      member: with `init_from`.
      state: of it, shapes are enough.
      config: of the run that it is a member of.
      vocabulary: of that run.

    Raises:
      UserError: if there is no such run, or it is one of another model or vocabulary.
    """
    key = f"config key 'members.{name}.init_from'"
    try:
        run = load_run(member.init_from)
    except UserError as error:
        raise UserError(f'{key}: {error}') from None
    if run.vocabulary.hash != vocabulary.hash:
        raise UserError(f'{key}: {member.init_from} has another vocabulary; set vocabulary.path to its')
    theirs, ours = config_lib.member_model(run.config, run.member), config_lib.member_model(config, name)
    heads = [model.get('heads', ()) for model in (theirs, ours)]
    changed = config_lib.differences({'model': {**theirs, 'heads': ()}}, {'model': {**ours, 'heads': ()}})
    if lost := set(heads[0]) - set(heads[1]):
        changed.append(f'model.heads: without {", ".join(sorted(lost))}')
    loaded = {part: traverse_util.flatten_dict(values) for part, values in run.variables.items()}
    wanted = {part: traverse_util.flatten_dict(getattr(state, part)) for part in loaded}
    for new, old in member.model.begins_as.items():
        if not any(path[0] == new for path in loaded['params']):
            copied = {(new, *path[1:]): value for path, value in loaded['params'].items() if path[0] == old}
            loaded['params'] |= {path: value for path, value in copied.items() if path in wanted['params']}
    shapes = {part: jax.tree.map(np.shape, values) for part, values in loaded.items()}
    mine = {
        part: {
            path: np.shape(value)
            for path, value in values.items()
            if path in loaded[part] or not path[0].endswith('_head')
        }
        for part, values in wanted.items()
    }
    if changed or shapes != mine:
        told = '; '.join(changed) or 'its parameters have other shapes'
        raise UserError(f'{key}: {member.init_from} is of another model ({told}); set members.{name}.model to its')
    return loaded


def load_first_weights(
    config: Mapping[str, Any],
    members: Mapping[str, Member],
    drawn: Mapping[str, MemberState],
    vocabulary: Vocabulary | WordPiece,
) -> dict[str, dict[str, Replacements]]:
    """Reads what the members begin with instead of what is drawn: name -> 'params' and 'batch_stats' -> values.

    Raises:
      UserError: if it cannot be read, or does not fit.
    """
    load = config_lib.bind(load_pretrained, config['initialize'], where='initialize', later=('params', 'words'))
    weights = {}
    for name, member in members.items():
        if member.init_from:
            weights[name] = load_trained(name, member, drawn[name], config, vocabulary)
        elif member.trains:
            weights[name] = {'params': load(drawn[name].params, vocabulary.words)}
    return weights
