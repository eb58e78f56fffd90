"""Small models on the states of frozen encoders, such as CLIP or SigLIP, of patches and of tokens, see docs/pixels.md.

`jitm encode` writes the states once:

    jitm encode --workdir runs/clip_b32 --texts --out data/f30k_tokens
    jitm train --config heads:gpo,softmax,f30k --workdir runs/gpo
"""

from ml_collections import ConfigDict

from jitm.configs import common, load

HEADS = {  # option -> file and options of the model
    'gpo': 'vse:fc',
    'mean': 'vse:mean',
    'scan': 'scan:t2i,avg',
    'maxsim': 'maxsim:t2i',
    'sgr': 'sgraf:sgr',
    'saf': 'sgraf:saf',
}
LOSSES = ('softmax', 'selhn', 'max')


@common.preset(HEADS, LOSSES, common.DATA)
def get_config(head: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    config = load(f'{HEADS[head]},{loss},{data},tokens')
    if 'image_whole' in config.model:
        config.model.image_whole.slots = 49  # patches of a B/32 at 224 pixels; a B/16 has 196
    common.set_schedule(config, epochs=10, learning_rate=5e-4, decay_epochs=8)
    return config
