"""SigLIP (Zhai et al. 2023) and SigLIP 2 (Tschannen et al. 2025), fine-tuned, and a tiny one trained from scratch.

`jitm convert` makes the run that a published size is initialized from:

    jitm convert --from siglip models/siglip-base-patch16-224 --out runs/siglip_b16_224
    jitm train --config siglip:b16_224,sigmoid,f30k --workdir runs/siglip_b16_224_f30k

The file is also the default of `jitm convert`, whose run has the model of the weights. Images of any folder that
`photos.load` reads: --config.data.root=FOLDER.
"""

from ml_collections import ConfigDict

from jitm.configs import clip, common

ACTIVATION = dict(activation='gelu_tanh', dtype='float32')
PIXELS = dict(mean=(0.5, 0.5, 0.5), deviation=(0.5, 0.5, 0.5))
TOWER = {  # the published name, and the sizes of the image encoder; text encoders have the same sizes, except for gopt
    'b': ('base', dict(hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=3072)),
    'l': ('large', dict(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)),
    'so400m': ('so400m', dict(hidden_dim=1152, num_layers=27, num_heads=16, mlp_dim=4304)),
    'gopt': ('giant-opt', dict(hidden_dim=1536, num_layers=40, num_heads=16, mlp_dim=6144)),
}
RELEASED = {  # version -> tower and size of a patch -> sizes of the images, all in pixels
    'siglip': {('b', 16): (224, 256, 384, 512), ('l', 16): (256, 384), ('so400m', 14): (224, 384)},
    'siglip2': {
        ('b', 16): (224, 256, 384, 512),
        ('b', 32): (256,),
        ('l', 16): (256, 384, 512),
        ('so400m', 14): (224, 384),
        ('so400m', 16): (256, 384, 512),
        ('gopt', 16): (256, 384),
    },
}
SIZE = {  # word -> tower, sizes of a patch and of the images
    f'{tower}{patch}_{pixels}': (tower, patch, pixels)
    for version in RELEASED.values()
    for (tower, patch), sizes in version.items()
    for pixels in sizes
}
LOSSES = ('sigmoid', 'softmax', 'max', 'selhn')
DATA = {data: dict(clip.DATA[data], short_side=0) for data in clip.DATA}  # photos are resized without a cut


def vit(image_size: int, patch_size: int, tower: dict) -> dict:
    """Returns an image encoder."""
    sizes = dict(image_size=image_size, patch_size=patch_size, **tower)
    return dict(name='siglip.PooledViT', **sizes, **ACTIVATION, **PIXELS)


def text(max_length: int, pad: int, tower: dict) -> dict:
    """Returns a text encoder."""
    return dict(name='siglip.PaddedTransformer', max_length=max_length, pad=pad, **tower, **ACTIVATION)


def model(embed_dim: int, image: dict, text: dict) -> dict:
    """Returns `config.model`."""
    learned = dict(initial_temperature=0.1, initial_bias=-10.0)
    return dict(name='clip.SigLIP', embed_dim=embed_dim, image=image, text=text, **learned)


@common.preset(RELEASED, SIZE, LOSSES, DATA)
def get_config(version: str, size: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    tower, patch, pixels = SIZE[size]
    if pixels not in RELEASED[version].get((tower, patch), ()):
        raise ValueError(f"'{version}' was not released as '{size}': use another size, or 'siglip2'")
    config = clip.get_config(f'b16,softmax,{data}')  # neither paper fine-tunes on captions
    (name, sizes), (_, of_text) = TOWER[tower], TOWER['so400m' if tower == 'gopt' else tower]
    folder = f'models/{version}-{name}-patch{patch}-{pixels}'
    if version == 'siglip':
        length, pad, interpolation, tokenizer = 16 if size == 'so400m14_224' else 64, 1, 'bicubic', 'spiece.model'
    else:
        length, pad, interpolation, tokenizer = 64, 0, 'bilinear', 'tokenizer.json'
    config.model = model(sizes['hidden_dim'], vit(pixels, patch, sizes), text(length, pad, of_text))
    config.data = dict(DATA[data], image_size=pixels, interpolation=interpolation)
    config.vocabulary.path = f'{folder}/{tokenizer}'
    config.members.target.init_from = f'runs/{version}_{size}'
    common.rank_with(config, common.LOSS['softmax_learned' if loss == 'softmax' else loss])
    return config
