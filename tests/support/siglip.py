"""A tiny SigLIP as Hugging Face publishes theirs."""

import json

import numpy as np
from safetensors.numpy import save_file

from jitm.importers.siglip_weights import NAMES, read_config
from jitm.importers.tensors import export
from tests.support.clip import draw
from tests.support.configs import changed
from tests.support.pieces import PIECES, write_model

WIDTH, HEADS, LAYERS, PATCH, SIZE, LENGTH = 16, 2, 2, 8, 20, 6  # of 20 pixels, 16 are read
V = len(PIECES)
TOWER = {
    'hidden_size': WIDTH,
    'intermediate_size': 24,
    'num_hidden_layers': LAYERS,
    'num_attention_heads': HEADS,
}


def siglip_config(changes=()):
    """A config whose dotted keys may have other values."""
    text = TOWER | {'max_position_embeddings': LENGTH, 'vocab_size': V, 'projection_size': WIDTH}
    image = TOWER | {'image_size': SIZE, 'patch_size': PATCH}
    return changed({'model_type': 'siglip', 'text_config': text, 'vision_config': image}, dict(changes))


def write(folder, config):
    """Writes a folder of Hugging Face with random tensors; returns its path and the variables."""
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    write_model(folder / 'spiece.model')
    model, _ = read_config(folder / 'config.json')
    model['text']['pad'] = 1
    variables = draw(model, V)
    tensors = {name: x.reshape(1) if 'logit' in name else x for name, x in export(variables, NAMES).items()}
    save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()}, folder / 'model.safetensors')
    return str(folder), variables
