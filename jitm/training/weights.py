"""Initial weights of models: published weights, or the weights of another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from chex import ArrayTree
from flax import traverse_util

from jitm.config import build as config_lib
from jitm.config import section
from jitm.data.text.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.files.outputs import OutputFolder
from jitm.importers.pretrained import Replacements
from jitm.models import make
from jitm.models.joint import JointEncoder
from jitm.models.make import member_model
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.run import load_run
from jitm.training.members import Frozen, Member, MemberState
from jitm.training.plan import Plan
from jitm.training.step import TrainState


def load_weights(
    plan: Plan, members: Mapping[str, Member], states: Mapping[str, MemberState], vocabulary: Tokenizer
) -> dict[str, dict[str, Replacements]]:
    """Loads the weights that members are initialized from instead of randomly.

    Args:
      plan: The plan of the run.
      members: The members by name.
      states: The state of each member; only shapes are read.
      vocabulary: The vocabulary of the run.

    Returns:
      Name -> 'params' and 'batch_stats' -> path of a parameter -> its values.

    Raises:
      UserError: If weights cannot be read, or do not fit.
    """
    variables = jax.eval_shape(lambda states: {name: state.variables for name, state in states.items()}, states)
    weights = {}
    for name, member in members.items():
        if member.init_from:
            weights[name] = load_from_run(name, member, variables[name], plan.models[name], vocabulary)
        elif member.trains:
            weights[name] = plan.load_pretrained(variables[name], vocabulary.words, member.model)
    generator = plan.generator
    if generator and isinstance(members[generator].rule, Frozen):  # its head must not have random parameters
        source = members[generator].copy_of or generator
        head = {path for path in traverse_util.flatten_dict(states[source].params) if path[0] == 'mlm_head'}
        if not head <= weights[source]['params'].keys():
            raise UserError(
                f"config key 'synthesis.generator' is '{generator}', which does not train and has no weights for its "
                f"head 'mlm': set members.{source}.init_from to a run whose model.heads have it"
            )
    return weights


def load_from_run(
    name: str, member: Member, variables: ArrayTree, model: Mapping[str, Any], vocabulary: Tokenizer
) -> dict[str, Replacements]:
    """Loads the parameters and statistics of the evaluated model in a member's `init_from`.

    Heads that the run lacks are initialized as `JointEncoder.add_heads` does, or randomly.

    Args:
      name: The name of the member.
      member: The member, with `init_from`.
      variables: The variables of the member's model; only shapes are read.
      model: The model section of the member.
      vocabulary: The vocabulary of the current run.

    Returns:
      'params' and 'batch_stats' -> path of a parameter -> its values.

    Raises:
      UserError: If the run does not exist, or has another model or vocabulary.
    """
    key = f"config key 'members.{name}.init_from'"
    try:
        run = load_run(member.init_from)
    except UserError as error:
        raise UserError(f'{key}: {error}') from None
    # The models may differ in the heads that are added, and in precision.
    old = member_model(run.config, run.member)
    new = config_lib.to_json(section.complete({'model': model}, make.SECTIONS, imports=False))['model']
    different = config_lib.differences({'model': {**old, 'heads': ()}}, {'model': {**new, 'heads': ()}})
    different = [line for line in different if not line.partition(':')[0].endswith('.dtype')]
    if run.vocabulary.hash != vocabulary.hash and not different:  # a difference of the models is the better reason
        raise UserError(f'{key}: {member.init_from} has another vocabulary; set vocabulary.path to its')
    lost = set(old.get('heads', ())) - set(new.get('heads', ()))
    if lost:
        different.append(f'model.heads: without {", ".join(sorted(lost))}')
    loaded = {part: traverse_util.flatten_dict(values) for part, values in run.variables.items()}
    expected = {part: traverse_util.flatten_dict(variables[part]) for part in loaded}
    if isinstance(member.model, JointEncoder):
        loaded['params'] = member.model.add_heads(loaded['params'])
        stored = {path for path in expected['params'] if path in loaded['params'] or not member.model.is_head(path)}
        expected['params'] = {path: expected['params'][path] for path in stored}  # other heads keep initial values
    shapes = [jax.tree.map(np.shape, parts) for parts in (loaded, expected)]
    if different or shapes[0] != shapes[1]:
        reason = '; '.join(different) or 'its parameters have other shapes'
        raise UserError(f'{key}: {member.init_from} has another model ({reason}); set members.{name}.model to its')
    return loaded


def check_new(folder: Path, kind: str) -> None:
    """Raises a UserError if a folder has a run already, or files that jitm did not write; see `write_weights`."""
    OutputFolder(folder, kind)
    if Checkpoints(folder).whole_steps():
        raise UserError(f'{folder} is {kind} already: choose a new folder')


def write_weights(described: Mapping[str, Any], variables: Mapping[str, ArrayTree], folder: Path, kind: str) -> None:
    """Writes a run of one checkpoint, at step 0, which is its best one.

    It has no config.json, so that training does not resume from it; `members.*.init_from` initializes from it.

    Args:
      described: The description of the run, with its config.
      variables: 'params' and 'batch_stats' of its evaluated model.
      folder: The run directory.
      kind: The name of its content, see `OutputFolder`.

    Raises:
      UserError: If the folder has files that jitm did not write, or cannot be written.
    """
    state = TrainState(0, {described['config']['evaluation']['member']: MemberState(**variables)})
    OutputFolder(folder, kind).claim(['checkpoints'])
    with Checkpoints(folder) as checkpoints:
        checkpoints.set_aside_damaged()  # left by a killed process
        checkpoints.save(state, 0, {**described, 'best_step': 0}, None)
