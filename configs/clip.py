"""CLIP (Radford et al. 2021), fine-tuned, and a tiny one trained from scratch.

`jitm convert` makes the run that a published size is initialized from:

    jitm convert --from clip WEIGHTS --out runs/clip_b32
    jitm train --config clip:b32,softmax,f30k --workdir runs/clip_b32_f30k

The file is also the default of `jitm convert`, whose run has the model of the weights. With anchors:
dbl:clip,rm,oas,f30k.
Images of any folder that `photos.load` reads: --config.data.root=FOLDER.

Example: --config clip:l14_336,selhn,coco
"""

from ml_collections import ConfigDict

from jitm.configs import common, default

QUICK_GELU = dict(activation='quick_gelu', dtype='float32')  # of OpenAI's models; most others have 'gelu'
PIXELS = dict(  # of the images that CLIP was trained on
    mean=(0.48145466, 0.4578275, 0.40821073), deviation=(0.26862954, 0.26130258, 0.27577711)
)


def _tower(hidden_dim: int, num_layers: int, num_heads: int) -> dict:
    sizes = dict(hidden_dim=hidden_dim, num_layers=num_layers, num_heads=num_heads, mlp_dim=4 * hidden_dim)
    return dict(sizes, **QUICK_GELU)


def _vit(image_size: int, patch_size: int, tower: dict) -> dict:
    return dict(name='vit.ViT', image_size=image_size, patch_size=patch_size, **tower, **PIXELS)


def _resnet(*blocks: int) -> dict:
    return dict(
        name='clip_resnet.ModifiedResNet',
        image_size=224,
        blocks=blocks,
        stem_dim=64,
        num_heads=32,
        train_norm=False,
        dtype='float32',
        **PIXELS,
    )


def _text(tower: dict) -> dict:
    return dict(name='clip_text.CausalTransformer', max_length=77, **tower)


SIZE = {  # tables 19 and 20: dimensions of the joint space, image encoder, text encoder
    'l14_336': (768, _vit(336, 14, _tower(1024, 24, 16)), _text(_tower(768, 12, 12))),
    'l14': (768, _vit(224, 14, _tower(1024, 24, 16)), _text(_tower(768, 12, 12))),
    'b16': (512, _vit(224, 16, _tower(768, 12, 12)), _text(_tower(512, 12, 8))),
    'b32': (512, _vit(224, 32, _tower(768, 12, 12)), _text(_tower(512, 12, 8))),
    'rn50': (1024, _resnet(3, 4, 6, 3), _text(_tower(512, 12, 8))),
    'rn101': (512, _resnet(3, 4, 23, 3), _text(_tower(512, 12, 8))),
    'tiny': (128, _vit(64, 16, _tower(128, 4, 4)), _text(_tower(128, 2, 4))),  # from scratch
}
LOSS = {
    'softmax': dict(loss='ranking.softmax_contrastive', weight=0.5, reduction='mean'),  # at the learned temperature
    'max': common.LOSS['max'],
    'sum': dict(loss='ranking.sum_of_hinges', margin=0.2),
    'selhn': common.LOSS['selhn'],
}
PHOTOS = dict(image_size=224, short_side=224, interpolation='bicubic', min_area=0.9, flip=False)  # of open_clip
DATA = {
    'f30k': common.photos('data/f30k_photos', **PHOTOS),
    'coco': common.photos('data/coco_photos', max_captions=5, **PHOTOS),
    'f8k': common.photos('data/f8k_photos', **dict(PHOTOS, image_size=64, short_side=64, min_area=0.5, flip=True)),
    'scenes': common.SCENES,
}
REDUCED = ('f8k', 'scenes')  # tiny
# Epochs, batch size, learning rate, weight decay, and share of the steps with a rising rate. DBL states no settings of
# CLIP: these are those of Shi et al. 2023 for L/14@336, without their momentum model, and for the others those of
# CLIP_COCO (Miranda et al. 2024).
SCHEDULE = {
    ('l14_336', 'f30k'): (12, 256, 1e-5, 0.2, 0.0),
    ('l14_336', 'coco'): (6, 256, 1e-5, 0.2, 0.0),
    ('other', 'f30k'): (10, 400, 1e-6, 0.1, 0.01),
    ('other', 'coco'): (10, 400, 1e-6, 0.1, 0.004),
    ('tiny', 'f8k'): (10, 128, 1e-3, 0.1, 0.1),
    ('tiny', 'scenes'): (12, 64, 1e-3, 0.1, 0.1),
}

SETTINGS = {
    'l14_336,softmax,f30k': (('CLIP', 'f30k', 'DBL table I', 'ViT-L/14@336px'),),
    'l14_336,softmax,coco': (('CLIP', 'coco', 'DBL table I', 'ViT-L/14@336px'),),
    **{f'{size},softmax,{data}': () for size in SIZE if size not in ('l14_336', 'tiny') for data in ('f30k', 'coco')},
    **{f'l14_336,{loss},{data}': () for loss in ('max', 'selhn') for data in ('f30k', 'coco')},
    **{f'{loss},{data}': () for loss in LOSS for data in REDUCED},
}


def get_config(setting: str = 'l14_336,softmax,f30k') -> ConfigDict:
    """Returns the config of a setting.

    Raises:
      ValueError: if a published size is asked for on the data of the reduced variants, or the other way round.
    """
    size, loss, data = common.parse(setting, SIZE, LOSS, DATA)
    if data in REDUCED and size in setting.split(',') and size != 'tiny':
        raise ValueError(f"the reduced variant '{data}' is tiny: leave the word '{size}' out")
    if data in REDUCED:
        size = 'tiny'
    elif size == 'tiny':
        raise ValueError(f"the size 'tiny' is for {' and '.join(REDUCED)}: take one of them instead of '{data}'")
    embed_dim, image, text = SIZE[size]
    config = default.get_config()
    config.data = DATA[data]
    if 'image_size' in config.data:
        config.data.image_size = config.data.short_side = image['image_size']
    config.model = dict(name='clip.CLIP', embed_dim=embed_dim, image=image, text=text, initial_temperature=0.07)
    config.drop_last = True
    config.candidates.same_image = 'ignored'
    common.rank_with(config, LOSS[loss])
    kind = size if (size, data) in SCHEDULE else 'other'
    config.epochs, config.batch_size, learning_rate, weight_decay, warm_up = SCHEDULE[kind, data]
    config.optimizer = dict(
        name='adamw_with_cosine',
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        factors=dict(),
        warm_up=warm_up,
        clip_norm=1.0,
    )
    if size == 'tiny':
        config.length_multiple = 12  # fewer lengths to compile
        if loss == 'max':
            common.sum_first(config, epochs=1)
    else:
        config.vocabulary.path = 'data/bpe_simple_vocab_16e6.txt.gz'
        config.members.target.init_from = f'runs/clip_{size}'
    return config
