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
TOWER = dict(hidden_dim=768, num_layers=12, num_heads=12, mlp_dim=3072)  # the sizes of both encoders
SIZE = {  # option -> sizes of a patch and of the images in pixels
    **{f'b16_{pixels}': (16, pixels) for pixels in (224, 256, 384, 512)},
    'b32_256': (32, 256),
}
VERSION = {  # the interpolation of the photos, the tokenizer, and the id that pads its captions
    'siglip': dict(interpolation='bicubic', tokenizer='spiece.model', pad=1),
    'siglip2': dict(interpolation='bilinear', tokenizer='tokenizer.json', pad=0),
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


@common.preset(VERSION, SIZE, LOSSES, DATA)
def get_config(version: str, size: str, loss: str, data: str) -> ConfigDict:
    """Returns the config of a preset."""
    if (version, size) == ('siglip', 'b32_256'):
        raise ValueError("'siglip' was not released as 'b32_256': use another size, or 'siglip2'")
    patch, pixels = SIZE[size]
    released = VERSION[version]
    config = clip.get_config(f'b16,softmax,{data}')  # neither paper fine-tunes on captions
    config.model = model(TOWER['hidden_dim'], vit(pixels, patch, TOWER), text(64, released['pad'], TOWER))
    config.data = dict(DATA[data], image_size=pixels, interpolation=released['interpolation'])
    config.vocabulary.path = f'models/{version}-base-patch{patch}-{pixels}/{released["tokenizer"]}'
    config.members.target.init_from = f'runs/{version}_{size}'
    common.rank_with(config, common.LOSS['softmax_learned' if loss == 'softmax' else loss])
    return config
