"""Configs and folders of small runs on photos, and files of runs."""

import shutil
from pathlib import Path

from jitm.commands.convert import write_run
from jitm.config import schema
from jitm.configs import common, load
from jitm.data import scenes
from jitm.data.images import photos
from jitm.importers.released import ReleasedModel
from jitm.runs.checkpoint import Checkpoints
from jitm.training.setup import set_up
from tests.conftest import make_tiny_config

NETWORK = {'name': 'cnn.SqueezeNet', 'pooled': True, 'dtype': 'float32', 'remat': False}


def draw(folder, sizes):
    """Writes photos of scenes, and returns their folder; every split has other pictures."""
    for name, images in sizes.items():
        photos.write(scenes.load(name, **{f'{name}_images': images}), folder)
    return folder


def make_config(root, **data):
    """The tiny config with random crops of photos: two epochs of 5 steps."""
    config = make_tiny_config()
    config['data'] = common.photos(str(root), **{'image_size': 32, 'short_side': 36} | data)
    regions = config['model']['image']
    config['model']['image'] = {
        'name': 'cnn.PixelEncoder',
        'network': NETWORK,
        'normalize_features': True,
        'regions': regions,
    }
    config['epochs'] = 2
    config['terms'].pop('later')
    config['evaluation']['every_steps'] = None
    return config


def tiny_scenes(setting):
    """The config of a setting on a few scenes."""
    data = {'source': 'scenes.load', 'seed': 0, 'train_images': 8, 'dev_images': 6, 'test_images': 4}
    return load(setting).to_dict() | {'data': data, 'batch_size': 10, 'length_multiple': 64}


def write_initial(config, folder):
    """Writes the run of a model with the parameters of its initialization."""
    setup = set_up(config)
    variables = setup.initial_state().members['target'].variables
    data = setup.data
    model = ReleasedModel(config['model'], variables, data.vocabulary, '', data.train.identity)
    write_run(model, schema.check(config), folder)


def make_head(tokens, head='gpo', loss='softmax', **changes):
    """The config of a tiny head of 9 steps."""
    config = load(f'heads:{head},{loss},f8k').to_dict()
    config['data']['root'] = str(tokens)
    config['model']['embed_dim'] = 8
    config['run'] |= {'log_every': 1, 'checkpoint_every': 4}
    return config | {'epochs': 3, 'batch_size': 20, 'length_multiple': 32} | changes


def remove_checkpoints(workdir: Path, after: int) -> None:
    """Removes the checkpoints after a step, as if the run had been killed before it saved them."""
    for step in Checkpoints(workdir).steps():
        if step > after:
            shutil.rmtree(workdir / 'checkpoints' / str(step))
