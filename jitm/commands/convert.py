"""`jitm convert`, see `usage.convert`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from jitm import configs
from jitm.commands import programs
from jitm.commands.usage.convert import TARGETS
from jitm.config import schema
from jitm.data.text.vocabularies import describe_vocabulary
from jitm.errors import UserError, did_you_mean
from jitm.files.outputs import OutputFolder
from jitm.importers import clip_weights, joint_checkpoints, systems
from jitm.importers.authors import load_checkpoint
from jitm.importers.blip_weights import load_blip
from jitm.importers.joint_checkpoints import load_joint
from jitm.importers.released import ReleasedModel
from jitm.importers.siglip_weights import load_siglip
from jitm.models.make import member_model
from jitm.runs import hub
from jitm.runs.run import Run, export_run, load_run
from jitm.training.weights import check_new, write_weights

CONFIGS = {  # system -> its default --config, if that is not the first preset of a file of its name
    'dbl': 'dbl:baseline,max,alone,f30k',
    'vse_infinity': 'vse_infinity:vse_infinity,gru,f30k',
    'esa': 'vse_infinity:esa,gru,f30k',
    'rvsepp': 'vse:rvse,selhn,f30k',
    'tags_dc': 'tags:tags_dc,base,f30k',
}
PHOTOS = {'vsepp': 'vsepp:vsepp,vgg19,f30k'}  # the same for models of photos, if the system has others
READS = {'precomp.load': 'regions', 'photos.load': 'pixels'}  # source -> kind of its images
LOADERS = {  # system -> reads its weights: `(system, path, --vocabulary, the config's model) -> ReleasedModel`
    'clip': lambda name, path, vocabulary, model: clip_weights.load_clip(path, vocabulary),
    'siglip': lambda name, path, vocabulary, model: load_siglip(path, vocabulary),
    'blip': lambda name, path, vocabulary, model: load_blip(path, vocabulary),
    **dict.fromkeys(systems.SYSTEMS, load_checkpoint),
    **dict.fromkeys(joint_checkpoints.JOINT_SYSTEMS, load_joint),
}
KIND = 'a converted run'


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Converts, and prints the command that evaluates the run."""
    source = values['from'].value
    target = values.to
    folder = Path(values.out)
    for flag, name, choices in (('from', source, LOADERS), ('to', target, TARGETS)):
        if name and name not in choices:
            raise UserError(f"--{flag} is '{name}', which is not a system{did_you_mean(name, choices)}")
    if len(words) != 1:
        raise UserError(f'{len(words)} paths are given: give one, of the published weights or of the run')
    if target == 'tfds':
        from jitm.data.images import tfds  # slow to import

        print(f'written      {tfds.write(words[0], folder)}')
        return
    if target:
        OutputFolder(folder, hub.KIND)  # raises an error for other folders
        _export(target, load_run(words[0]), folder)
        print(f'written      {folder}')
        return
    check_new(folder, KIND)
    _import(source, words[0], folder, values)


def _import(name: str, path: str, folder: Path, values: flags.FlagValues) -> None:
    """Converts published weights to a run directory."""
    config = values.config or configs.load(CONFIGS.get(name, name)).to_dict()
    published = LOADERS[name](name, path, values.vocabulary, config['model'])
    if name in PHOTOS and not values.config and 'pixels' in published.data:
        config = configs.load(PHOTOS[name]).to_dict()
    write_run(published, make_config(config, published), folder)
    lines = [f'vocabulary   {len(published.vocabulary)} entries']
    if published.assumed:
        assumed = ', '.join(f'{key}={value}' for key, value in published.assumed.items())
        lines.append(f'assumed      {assumed}  (of the config: the checkpoint does not state them)')
    programs.print_run(folder, *lines)


def make_config(config: Mapping[str, Any], published: ReleasedModel) -> dict[str, Any]:
    """Returns the config of the run: the given one with the model and vocabulary, and the size of its images.

    A model without its captioner has no term for captions, and nothing is left to initialize.

    Raises:
      UserError: If the config is wrong, or its data have no images of the kind that the model reads.
    """
    data = dict(config['data'])
    kind = 'pixels' if 'pixels' in published.data else 'regions'
    if READS.get(data['source'], kind) != kind:
        source_of_data = f"the data of --config ('{data['source']}')"
        raise UserError(f'the model reads {kind}, which {source_of_data} do not have: give another config')
    size = published.data['pixels'][1] if kind == 'pixels' else data.get('image_size')
    if size != data.get('image_size'):
        data |= {key: size for key in ('image_size', 'short_side') if key in data}
    data |= {key: value for key, value in published.resizing.items() if key in data}
    pixels = data.get('interpolation', 'bicubic'), data.get('short_side') == data.get('image_size')
    if published.model['name'] == 'clip.CLIP' and pixels != ('bicubic', True):
        photos = "photos whose shorter side is resized to data.image_size with data.interpolation 'bicubic'"
        raise UserError(f'a CLIP reads {photos}: give --config clip, with options or without')
    terms = dict(config['terms'])
    if not published.model.get('caption', True):
        terms = {name: term for name, term in terms.items() if term['loss'] != 'tokens.captioning'}
    vocabulary = dict(config['vocabulary'], path=published.vocabulary_path)
    model = {'model': published.model, 'vocabulary': vocabulary, 'initialize': dict.fromkeys(config['initialize'], '')}
    return schema.check({**config, **model, 'data': data, 'terms': terms})


def write_run(published: ReleasedModel, config: Mapping[str, Any], folder: Path) -> None:
    """Writes a converted run, see `write_weights`."""
    run = {
        'config': config,
        'vocabulary': describe_vocabulary(published.vocabulary),
        'vocabulary_hash': published.vocabulary.hash,
        'data': published.data,
    }
    write_weights(run, published.variables, folder, KIND)


def _export(target: str, run: Run, folder: Path) -> None:
    """Writes a run as one folder, with the names of a target."""
    if target == 'safetensors':
        export_run(run, folder)
        return
    files = clip_weights.export_clip(member_model(run.config, run.member), run.variables, run.vocabulary)
    output = OutputFolder(folder, hub.KIND)
    output.claim(files)
    for name, content in files.items():
        output.write(name, content)
    output.remove({*output.names} - {*files})
