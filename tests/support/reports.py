"""Splits and configs of runs that are reported."""

import numpy as np

from jitm.data.splits import Split


def make_split(name, image_of_text):
    """A split whose captions have its name."""
    images = max(image_of_text) + 1
    return Split(
        name=name,
        regions=np.zeros((images, 1, 3), np.float32),
        counts=np.ones(images, np.int32),
        captions=tuple(f'{name} {n}' for n in range(len(image_of_text))),
        image_of_text=np.array(image_of_text, np.int32),
        image_ids=tuple(map(str, range(images))),
    )


def config_of(seed=0, loss='max_of_hinges', model=None, **changes):
    config = {
        'seed': seed,
        'precision': 'high',
        'labels': {'source': ''},
        'model': {'name': 'vse.VSE'} | (model or {}),
        'terms': {'ranking': {'loss': f'ranking.{loss}', 'margin': 0.2, 'start_epoch': 0}},
        'optimizer': {'name': 'adam', 'learning_rate': 1e-3},
        'evaluation': {'split': 'dev', 'member': 'target', 'dtype': 'float32', 'precision': 'highest'},
        'members': {'target': {'rule': 'gradient', 'init_from': ''}},
        'offline': {'path': ''},
        'run': {'log_every': seed + 1},
    }
    return config | changes
